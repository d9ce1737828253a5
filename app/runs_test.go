package app

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/internal/ui"
	"fisub/project"
	"fisub/remote"
	"fisub/remote/dispatch"
	"fisub/runs"
)

// runs rm does not remove a run whose jobs may still run.
func TestRemoveRunWithJobs(t *testing.T) {
	a := &app{Project: project.Project{Dir: t.TempDir()}, stdout: io.Discard, term: &ui.Terminal{}}
	folder := filepath.Join(a.Dir, runs.Dir, "20260103-1")
	plan := dispatch.Plan{Version: 1, Jobs: []*dispatch.JobRecord{{ID: "j", Handle: &remote.Handle{}}}}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := plan.Save(folder); err != nil {
		t.Fatal(err)
	}
	if err := a.runsRm([]string{"20260103"}, 0); err == nil || !strings.Contains(err.Error(), "its jobs may still run") {
		t.Errorf("got %v, want a refusal", err)
	}
	if err := os.Remove(filepath.Join(folder, dispatch.PlanName)); err != nil {
		t.Fatal(err)
	}
	err := a.runsRm([]string{"20260103"}, 0)
	if _, left := os.Stat(folder); err != nil || left == nil {
		t.Errorf("without jobs: got %v, and the folder is left: %v", err, left == nil)
	}
}

// A filter that matches no run is named.
func TestListNoMatch(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{Project: project.Project{Dir: t.TempDir()}, stdout: &out, term: &ui.Terminal{Out: &out, Err: &errs}}
	list := func(f runFilter) string {
		out.Reset()
		errs.Reset()
		if err := a.runsLs(f); err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out.String()+errs.String(), a.Dir, "DIR")
	}
	filter := runFilter{match: []string{"tiles", "b200"}, best: true, limit: 1}
	if got, want := list(filter), "no runs below DIR/.fisub/runs\n"; got != want {
		t.Errorf("without runs: got %q, want %q", got, want)
	}
	killed := filepath.Join(a.Dir, runs.Dir, "20260103-1", "events.jsonl") // before its first event
	if err := errors.Join(os.MkdirAll(filepath.Dir(killed), 0o755), os.WriteFile(killed, nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if got, want := list(filter), "no run below DIR/.fisub/runs matches --match tiles --match b200 --best\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := list(runFilter{match: []string{"0103"}, failed: true, limit: 1}); !strings.Contains(got, "\n20260103-1 ") {
		t.Errorf("got %q, want the run", got)
	}
}
