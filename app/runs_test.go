package app

import (
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
