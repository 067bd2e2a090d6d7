#!/usr/bin/env python3
"""The command line of ep_bench: help, refusals with what was expected, verdicts, JSON."""

import json
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(sys.argv.pop())
SMALL = ("--ranks", "3", "--tokens", "5", "--hidden", "64", "--experts", "12", "--iterations", "2")


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


class CommandLine(unittest.TestCase):

    def refused(self, expected, *arguments):
        status, output, error = run(*arguments)
        self.assertEqual((status, output), (2, ""), error)
        self.assertIn(expected, error)

    def test_help_lists_every_option_that_the_documents_use(self):
        status, output, _ = run("--help")
        self.assertEqual(status, 0)
        for option in ("--wire", "--ranks", "--tokens", "--mode", "--layout", "--format", "--comms",
                       "--eager", "--memcpy-baseline", "--json", "--seed", "--routing"):
            self.assertIn(f"  {option}", output)

    def test_hybrid_wires_split_what_leaves_the_node_from_what_stays(self):
        status, output, error = run("--wire", "hybrid:nvlink+efa-proxy", "--nodes", "2,3",
                                    "--shape", "per_node", "--tokens", "4", "--hidden", "64",
                                    "--experts", "10", "--iterations", "2", "--json", "-")
        self.assertEqual(status, 0, error)
        row = json.loads(output)
        self.assertTrue(row["verified"])
        self.assertEqual(row["shape"], "per_node")
        self.assertEqual(row["config"]["ranks"], 5)
        self.assertEqual(row["dispatch"]["inter_messages_per_rank"], 1)
        self.assertGreater(row["dispatch"]["messages_per_rank"], 1)

    def test_what_is_wrong_is_said_with_what_was_expected(self):
        self.refused("--nodes have 16 ranks together", "--nodes", "3,5,8", "--ranks", "8")
        self.refused("expected how many nodes", "--nodes", "0")
        self.refused("--shape per_node is for --wire hybrid:nvlink", "--wire", "efa-proxy",
                     "--shape", "per_node")
        self.refused("no option '--rank'", "--rank", "8")
        self.refused("--ranks needs a value", "--ranks")
        self.refused("expected a whole number from 1 to 4096", "--ranks", "0")
        self.refused("nvlink, ib-gpu", "--wire", "token-ring")
        self.refused("expected one of rank_major, expert_major", "--layout", "flat")
        self.refused("--tokens has 2 counts, expected 1 or 3", "--ranks", "3", "--tokens", "1,2")
        self.refused("--transfer pull needs", "--transfer", "pull")
        self.refused("--landing caller needs --mode counted", "--landing", "caller")
        self.refused("--comms is for --wire proxy:memory", "--wire", "nvlink", "--comms", "2")
        self.refused("--eager is for --wire proxy:memory", "--eager", "64")
        self.refused("--nic is for --wire gdaki:efa", "--nic", "thread")
        self.refused("--nic block needs --exec cuda", "--wire", "gdaki:efa", "--nic", "block")
        self.refused("peer-memory needs --exec cuda", "--wire", "peer-memory")
        self.refused("--spawn and --strict are for --wire libfabric:PROVIDER or hybrid:shm+",
                     "--wire", "proxy:memory", "--spawn", "2")
        for spawn in (("--spawn", "3", "--ranks", "2"), ("--ranks", "2", "--spawn", "3")):
            self.refused("--ranks 2 of 3 processes", "--wire", "libfabric:tcp", *spawn)

    def test_a_run_is_verified_and_its_json_says_so(self):
        for wire in ("nvlink", "efa-proxy", "proxy:memory", "proxy:srd", "gdaki:efa", "gdaki:mlx5"):
            status, output, error = run("--wire", wire, *SMALL, "--quiet", "--json", "-")
            self.assertEqual(status, 0, error)
            row = json.loads(output)
            self.assertEqual((row["wire"], row["verified"]), (wire, True))
            self.assertGreater(row["dispatch"]["mean_ns"], 0)

    def test_thousands_of_tokens_are_counted_unless_asked_otherwise(self):
        for tokens, more, mode in ((512, (), "slotted"), (513, (), "counted"),
                                   (513, ("--mode", "slotted"), "slotted")):
            status, output, error = run("--wire", "nvlink", "--ranks", "2", "--tokens", str(tokens),
                                        "--hidden", "8", "--experts", "4", "--topk", "2",
                                        "--iterations", "1", "--quiet", "--json", "-", *more)
            self.assertEqual(status, 0, error)
            self.assertEqual(json.loads(output)["config"]["mode"], mode)

    def test_damage_is_noticed(self):
        status, _, _ = run("--wire", "nvlink", *SMALL, "--quiet", "--tamper")
        self.assertEqual(status, 1)


if __name__ == "__main__":
    unittest.main()
