#!/usr/bin/env python3
"""The command line of ep_model: help, refusals with what was expected, files that can be read."""

import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = pathlib.Path(sys.argv.pop())


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def line(wire, tokens, ns, **more):
    """A line of ep_bench --json whose calls take `ns`."""
    call = {"messages_per_rank": 7, "bytes_per_rank": 4096 * tokens, "mean_ns": ns}
    return json.dumps({"wire": wire, "verified": True, "shape": "per_peer", "clock": "modelled",
                       "dispatch": call, "combine": call,
                       "config": {"ranks": 8, "tokens": [tokens], "mode": "slotted"}, **more})


class CommandLine(unittest.TestCase):

    def refused(self, expected, *arguments):
        status, output, error = run(*arguments)
        self.assertEqual((status, output), (2, ""), error)
        self.assertIn(expected, error)

    def test_help_names_every_command_and_every_command_has_help(self):
        status, output, _ = run("--help")
        self.assertEqual(status, 0)
        for name in ("seed", "plan", "sweep", "calibrate", "simulate"):
            self.assertIn(f"  {name} ", output)
            status, own, _ = run(name, "--help")
            self.assertEqual(status, 0)
            self.assertIn(f"usage: ep_model {name}", own)

    def test_what_is_wrong_is_said_with_what_was_expected(self):
        self.refused("usage: ep_model COMMAND")
        self.refused("no command 'sed'", "sed")
        self.refused("no option '--rank'", "plan", "--rank", "8")
        self.refused("--ranks needs a value", "plan", "--ranks")
        self.refused("expected a whole number from 1 to 65536", "plan", "--ranks", "0")
        self.refused("expected a number from 0 to 1", "plan", "--overlap", "1.5")
        self.refused("efa-proxy, ", "plan", "--wire", "token-ring")
        self.refused("expected bf16 or fp8", "plan", "--format", "fp4")
        self.refused("--nodes 4 is more than --ranks 2", "plan", "--ranks", "2", "--nodes", "4")
        self.refused("--topk 9 is more than --experts 8", "plan", "--topk", "9", "--experts", "8")
        self.refused("--routing: ", "simulate", "--routing", "trace:nowhere")
        self.refused("expected whole numbers", "sweep", "--token-list", "1,x")
        self.refused("as many ranks on every node", "simulate", "--ranks", "9", "--nodes", "2",
                     "--shape", "per_node")
        self.refused("cannot write", "sweep", "--to", "/nowhere/file")

    def test_seed_agrees_with_every_published_figure(self):
        status, output, _ = run("seed")
        self.assertEqual(status, 0, output)
        self.assertNotIn("DOES NOT AGREE", output)
        self.assertIn("no reading of the stated inputs gives it", output)
        status, output, _ = run("seed", "--json", "-")
        figures = {f["name"]: f for f in json.loads(output)["figures"]}
        self.assertEqual(figures["messages of a dispatch"]["computed"], 15)
        self.assertEqual(figures["bytes of dispatch / all-gather"]["computed"], 0.5)
        self.assertAlmostEqual(figures["us per all-to-all"]["computed"], 14.7e3 / 96)
        self.assertAlmostEqual(figures["tokens/s with the tax"]["computed"], 1e3 / 51)
        shares = json.loads(output)["wire_share_percent"]
        self.assertFalse([s for s in shares if s["stated"] and 2.15 <= s["percent"] < 2.25])

    def test_plan_gives_a_line_per_choice_and_the_levers(self):
        status, output, _ = run("plan")
        self.assertEqual(status, 0)
        for word in ("per_node: ", "slotted: ", "1 comm: ", "1 lane: ", " SMs: ", "tokens/s"):
            self.assertIn(word, output)
        _, output, _ = run("plan", "--levers")
        self.assertIn("all-gather is cheaper", output)
        for word in ("issue rate", "K comms", "eager grouping", "per node", "GPU posting"):
            self.assertIn(word, output)

    def test_sweep_writes_the_same_rows_as_csv_and_as_json(self):
        options = ("sweep", "--wire", "all", "--token-list", "1,64", "--counted")
        rows = list(csv.DictReader(io.StringIO(run(*options)[1])))
        objects = json.loads(run(*options, "--output", "json")[1])
        self.assertEqual(len(rows), len(objects))
        self.assertGreater(len(rows), 100)
        for row, entry in zip(rows, objects):
            self.assertEqual(row["shape"], entry["shape"])
            self.assertAlmostEqual(float(row["total_ns"]), entry["total_ns"])
            stages = sum(v for k, v in entry.items()
                         if k.endswith("_ns") and "roof" not in k and k != "total_ns")
            self.assertAlmostEqual(stages / max(entry["total_ns"], 1), 1, 6)

    def test_simulate_repeats_itself_and_shows_the_rollout(self):
        options = ("simulate", "--json", "-", "--spray-ns", "500", "--shape", "all")
        first = [json.loads(text) for text in run(*options)[1].splitlines()]
        second = [json.loads(text) for text in run(*options)[1].splitlines()]
        self.assertEqual([r["digest"] for r in first], [r["digest"] for r in second])
        self.assertEqual(len(first), 4)
        status, output, _ = run("simulate", "--rollout")
        self.assertEqual(status, 0)
        for word in ("assumed:", "48 nodes", "published: DeepEP", "not modelled"):
            self.assertIn(word, output)

    def test_calibrate_finds_the_constants_and_judges_what_it_held_out(self):
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        with tempfile.TemporaryDirectory() as folder:
            good = pathlib.Path(folder) / "good.json"
            good.write_text("\n".join(line("w", t, 20000 + 4096 * t * 0.04) for t in sizes))
            table = pathlib.Path(folder) / "table.csv"
            status, output, error = run("calibrate", good, "--csv", table)
            self.assertEqual(status, 0, output + error)
            rows = list(csv.DictReader(io.StringIO(table.read_text())))
            self.assertEqual(len(rows), 16)
            self.assertEqual(sum(r["held_out"] == "1" for r in rows), 6)
            for r in rows:
                self.assertLess(abs(float(r["predicted_ns"]) / float(r["measured_ns"]) - 1), 0.02)
            odd = pathlib.Path(folder) / "odd.json"  # what no wire does
            odd.write_text("\n".join(line("w", t, 20000 * (1 + 9 * (i % 2)))
                                     for i, t in enumerate(sizes)))
            self.assertEqual(run("calibrate", odd)[0], 1)
            bad = pathlib.Path(folder) / "bad.json"
            bad.write_text("{\n")
            self.refused("bad.json:1: is no JSON object", "calibrate", bad)
            bad.write_text('{"verified": true}\n')
            self.refused("expected a line of ep_bench --json", "calibrate", bad)
            bad.write_text(line("w", 1, 5, verified=False, why="rank 3"))
            self.refused("is not verified: rank 3", "calibrate", bad)
            bad.write_text(line("w", 1, 5))
            self.refused("four sizes or more", "calibrate", bad)
        self.refused("cannot be read", "calibrate", "nowhere.json")
        self.refused("needs a FILE", "calibrate")


if __name__ == "__main__":
    unittest.main()
