#!/usr/bin/env python3
"""ep_bench over libfabric, a process per rank, every byte compared: spawn_test.py [--all] PROGRAM

Without --all, one run of each number of ranks; with it, 2, 3, 5 and 8 ranks with one and two
comms, eager payloads off, small and large, over tcp and shm, strict or not in turn.
"""

import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest

ALL = "--all" in sys.argv
if ALL:
    sys.argv.remove("--all")
PROGRAM = pathlib.Path(sys.argv.pop())
TRACE = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/traces/moe_e256_k8"
WORK = ("--tokens", "12", "--hidden", "256", "--topk", "8", "--experts", "256", "--iterations",
        "3", "--routing", f"trace:{TRACE}", "--quiet", "--json", "-")
FEW = [("tcp", 2, 2, 8192, False), ("tcp", 3, 1, 0, True), ("tcp", 5, 1, 256, False),
       ("shm", 3, 2, 256, True), ("shm", 8, 1, 8000, False)]
MATRIX = [(*each, number % 2 == 0) for number, each in enumerate(
    itertools.product(("tcp", "shm"), (2, 3, 5, 8), (1, 2), (0, 256, 8000)))]


def run(*arguments, **environment):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


class Spawned(unittest.TestCase):

    def test_every_byte_is_as_expected(self):
        for number, (provider, ranks, comms, eager, strict) in enumerate(MATRIX if ALL else FEW):
            shape = ("per_row", "per_peer")[number % 2]
            options = ("--wire", f"libfabric:{provider}", "--spawn", str(ranks), "--comms",
                       str(comms), "--eager", str(eager), "--shape", shape,
                       *(("--strict",) if strict else ()))
            with self.subTest(" ".join(options)):
                done = run(*options, *WORK)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                row = json.loads(done.stdout)
                self.assertTrue(row["verified"])
                self.assertGreater(row["proxy"]["messages"], 0)
                if eager >= 8000 and shape == "per_row":  # rows travel in groups
                    self.assertLess(row["proxy"]["messages"], row["proxy"]["commands"] / 2)

    def test_damage_is_noticed(self):
        done = run("--wire", "libfabric:tcp", "--spawn", "2", "--tamper", *WORK)
        self.assertEqual(done.returncode, 1)

    def test_hosts_are_simulated_and_what_leaves_them_is_one_message_per_node(self):
        for nodes, ranks, others in (("3,2", "5", 1), ("2", "4", 1)):
            done = run("--wire", "hybrid:shm+libfabric:tcp", "--shape", "per_node", "--spawn",
                       ranks, "--nodes", nodes, *WORK)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            row = json.loads(done.stdout)
            self.assertTrue(row["verified"])
            self.assertEqual(row["shape"], "per_node")
            for call in ("dispatch", "combine"):
                self.assertAlmostEqual(row[call]["inter_messages_per_rank"], others, delta=0.5)
                self.assertGreater(row[call]["messages_per_rank"],
                                   row[call]["inter_messages_per_rank"])

    def test_nodes_without_spawn_are_the_launcher_s_business(self):
        done = run("--wire", "hybrid:shm+libfabric:tcp", "--nodes", "2", *WORK, RANK="",
                   WORLD_SIZE="", SLURM_PROCID="")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--nodes needs --spawn", done.stderr)

    def test_a_provider_that_is_not_there_is_named(self):
        done = run("--wire", "libfabric:no-such-wire", "--spawn", "2", *WORK)
        self.assertEqual(done.returncode, 2)
        self.assertIn("no provider 'no-such-wire'", done.stderr)

    def test_without_ranks_nothing_runs(self):
        done = run("--wire", "libfabric:tcp", *WORK, RANK="", WORLD_SIZE="", SLURM_PROCID="")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--spawn R", done.stderr)

    def test_torchrun_variables_make_a_job(self):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        who = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
               "EPT_BOOTSTRAP_PORT": str(port), "EPT_JOB_TOKEN": "spawn-test"}
        command = [PROGRAM, "--wire", "libfabric:tcp", *WORK]
        ranks = [subprocess.Popen(command, env={**os.environ, **who, "RANK": str(rank)},
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank in range(2)]
        outputs = [rank.communicate(timeout=120) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertTrue(json.loads(outputs[0][0])["verified"])
        self.assertEqual(outputs[1][0], "")


if __name__ == "__main__":
    unittest.main()
