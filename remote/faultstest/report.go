//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// print prints the result of a run in one line, followed by its problems.
func (r *result) print(to io.Writer, n, of int) {
	word := "ok"
	if len(r.Problems) > 0 {
		word = "BROKEN"
	}
	fmt.Fprintf(to, "%d/%d seed %d: %s: %s; status %d, %d times attached, %s, gc ended %d; %.0f s\n", n, of,
		r.Scenario.Seed, word, r.Scenario.what(), r.First, r.Attached, r.Outcome, r.Swept, r.Seconds)
	for _, p := range r.Problems {
		fmt.Fprintf(to, "    %s\n", strings.ReplaceAll(p, "\n", "\n    | "))
	}
	for _, p := range r.Notes {
		fmt.Fprintf(to, "    note: %s\n", p)
	}
}

// keep copies the files of a run to a folder.
func (r *result) keep(dir, to string) {
	_ = os.RemoveAll(to)
	if err := os.MkdirAll(to, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		return
	}
	_ = os.WriteFile(filepath.Join(to, "timeline"), []byte(r.Log), 0o644)
	names, _ := filepath.Glob(filepath.Join(dir, "*.*"))
	names = append(names, filepath.Join(dir, "client", user, "p", ".fisub"))
	_ = exec.Command("cp", append(append([]string{"-a"}, names...), to)...).Run()
}

var numbers = regexp.MustCompile(`[0-9]+`)

func summary(to io.Writer, all []*result, took time.Duration) {
	fmt.Fprintf(to, "\n%d runs in %v\n\n", len(all), took.Round(time.Second))
	t := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	columns := []struct {
		name string
		is   func(r *result) bool
	}{
		{"runs", func(*result) bool { return true }},
		{"in mid-run", func(r *result) bool { return r.Hit }},
		{"whole at once", func(r *result) bool { return r.Outcome == "whole" && r.Attached == 0 }},
		{"by attach", func(r *result) bool { return r.Outcome == "whole" && r.Attached > 0 && !r.Resumed }},
		{"by --resume", func(r *result) bool { return r.Outcome == "whole" && r.Resumed }},
		{"cancelled", func(r *result) bool { return r.Outcome == "cancelled" }},
		{"none begun", func(r *result) bool { return r.Outcome == "none" }},
		{"in part", func(r *result) bool { return r.Outcome == "part" }},
		{"gc ended a job", func(r *result) bool { return r.Swept > 0 }},
		{"broken", func(r *result) bool { return len(r.Problems) > 0 }},
	}
	fmt.Fprint(t, "fault\t")
	for _, c := range columns {
		fmt.Fprint(t, c.name, "\t")
	}
	for _, fault := range append(faults, "all") {
		fmt.Fprint(t, "\n", fault, "\t")
		for _, c := range columns {
			n := 0
			for _, r := range all {
				if (fault == "all" || r.Scenario.Fault == fault) && c.is(r) {
					n++
				}
			}
			fmt.Fprint(t, n, "\t")
		}
	}
	fmt.Fprintln(t)
	_ = t.Flush()
	streams, verdicts := 0, 0
	for _, r := range all {
		streams += r.Streams
		verdicts += r.Verdicts
	}
	fmt.Fprintf(to, "\n%d verdicts in %d streams on the hosts were compared with the end results\n", verdicts, streams)
	notes := map[string]int{}
	for _, r := range all {
		for _, note := range r.Notes {
			notes[numbers.ReplaceAllString(note, "N")]++
		}
	}
	if len(notes) > 0 {
		fmt.Fprintln(to)
	}
	for _, note := range slices.Sorted(maps.Keys(notes)) {
		fmt.Fprintf(to, "%d times: %s\n", notes[note], note)
	}
}
