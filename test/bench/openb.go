//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/heddle-dev/heddle/test/bench/openb"
)

// packed replays the openb trace with its ten seeds, and prints how many percent of the GPUs are allocated once
// 100 and 130 % of them are asked for. The published policies check the replay on the default trace; on the others
// heddle is compared to what is published of FGD, the best of them.
func packed(w io.Writer) ([]row, error) {
	dir := filepath.Join(os.Getenv("HEDDLE_FIXTURES"), "openb")
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("HEDDLE_FIXTURES has no trace: %w", err)
	}
	const how, seeds = "replay of openb", 10
	all := []string{"Random", "LeastAllocated", "MostAllocated", "BestFit", "FGD", "heddle"}
	first, err := openb.Compare(dir, openb.Traces()[:1], all, openb.Seeds(seeds))
	if err != nil {
		return nil, err
	}
	others, err := openb.Compare(dir, openb.Traces()[1:], all[5:], openb.Seeds(seeds))
	err = errors.Join(err, first.Print(w, openb.Traces()[:1], all), others.Print(w, openb.Traces()[1:], all[5:]))
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, p := range all {
		if paper, ok := openb.Published(p, "default"); ok {
			got := first["default"][p]
			far := max(got.At100-paper.At100, paper.At100-got.At100, got.At130-paper.At130, paper.At130-got.At130)
			rows = append(rows, atMost(p+" by this replay, to the published", far, 0.3, "points", how))
		}
	}
	ours := first["default"]["heddle"]
	rows = append(rows,
		atLeast("GPUs allocated by heddle at 100 %", ours.At100, 95.8, "%", how),
		atLeast("the same at 130 %", ours.At130, 95.9, "%", how),
		atMost("one decision among 1,213 nodes", float64(ours.Decision.Microseconds())/1000, 1, "ms", how))
	for _, trace := range openb.Traces() {
		got := others[trace]["heddle"]
		if trace == "default" {
			got = ours
		}
		paper, _ := openb.Published("FGD", trace)
		more := min(got.At100-paper.At100, got.At130-paper.At130)
		rows = append(rows, atLeast("heddle to FGD on "+trace, more, 0, "points", how))
	}
	return rows, nil
}
