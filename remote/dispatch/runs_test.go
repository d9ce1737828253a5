package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fisub/internal/event"
	"fisub/internal/event/eventtest"
	"fisub/remote"
	"fisub/remote/dispatch"
	"fisub/runs"
)

// A holder is a provider whose List returns given jobs.
type holder struct {
	remote.Provider // never called
	held            []string
	down            error
	listing         func() // may be nil
}

func (h *holder) List(context.Context) ([]remote.Handle, error) {
	if h.listing != nil {
		h.listing()
	}
	var all []remote.Handle
	for _, job := range h.held {
		all = append(all, remote.Handle{Job: job})
	}
	return all, h.down
}

// plan creates a run folder below root, of a run with two workloads.
func plan(t *testing.T, root, id string, done bool, jobs ...*dispatch.JobRecord) string {
	t.Helper()
	folder := runs.NewFolder(root, id)
	p := &dispatch.Plan{Version: 1, Done: done, Jobs: jobs,
		Run: event.Run{ID: id, Workloads: []event.WorkloadRef{{UUID: "w0"}, {UUID: "w1"}}}}
	if err := errors.Join(p.Save(folder.Path()), folder.Close()); err != nil {
		t.Fatal(err)
	}
	return folder.Path()
}

// An orphan is not free if a local run may need its results or it was submitted elsewhere. A job on a host of two
// tables is listed once. A job that another process starts while the hosts are asked is no orphan.
func TestOrphans(t *testing.T) {
	root := t.TempDir()
	now := time.Now()
	write := func(id string, jobs ...*dispatch.JobRecord) string { return plan(t, root, id, false, jobs...) }
	write("20260101-1", &dispatch.JobRecord{ID: "fisub-20260101-1-1", Workloads: []string{"w0"}},
		&dispatch.JobRecord{ID: "fisub-20260101-1-2", Workloads: []string{"w1"}, Ended: &now})
	// In this run w0 has a verdict, so job 1 is not needed.
	dir := write("20260102-1", &dispatch.JobRecord{ID: "fisub-20260102-1-1", Workloads: []string{"w0"}},
		&dispatch.JobRecord{ID: "fisub-20260102-1-2", Workloads: []string{"w1"}})
	events := `{"seq":1,"type":"run","run":{"workloads":[{"uuid":"w0"},{"uuid":"w1"}]}}
`
	verdict, err := event.Marshal(event.Event{Seq: 2, Type: event.TypeEvaluated, Workload: "w0",
		Evaluated: eventtest.Verdict{UUID: "w0", Status: "PASSED"}.Evaluated()})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), append([]byte(events), verdict...), 0o600); err != nil {
		t.Fatal(err)
	}
	cancelled := write("20260103-1", &dispatch.JobRecord{ID: "fisub-20260103-1-1", Workloads: []string{"w0"}})
	if err := dispatch.Mark(cancelled); err != nil {
		t.Fatal(err)
	}
	held := []string{"fisub-20260101-1-1", "fisub-20260101-1-2", "fisub-20260102-1-1", "fisub-20260102-1-2",
		"fisub-20260102-1-7", "fisub-20260103-1-1", "fisub-20260104-1-1",
		"fisub-elsewhere-0"}
	starts := func() {
		write("20260104-1", &dispatch.JobRecord{ID: "fisub-20260104-1-1", Workloads: []string{"w0"}})
	}
	open := map[string]remote.Provider{"lab": &holder{held: held}, "too": &holder{held: held}, "down": &holder{down: io.ErrUnexpectedEOF, listing: starts}}
	got, err := dispatch.Orphans(t.Context(), root, open, []string{"down", "lab", "too"})
	var text []string
	for _, o := range got {
		text = append(text, strings.TrimSpace(fmt.Sprint(o.Table, " ", o.Job, " ", o.Elsewhere, " ", o.Run)))
	}
	want := `lab fisub-20260101-1-2 false 20260101-1
lab fisub-20260102-1-1 false
lab fisub-20260102-1-7 false
lab fisub-20260103-1-1 false
lab fisub-elsewhere-0 true`
	if strings.Join(text, "\n") != want || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v\n%s\nwant\n%s", err, strings.Join(text, "\n"), want)
	}
	lines, err := dispatch.List(root, nil)
	if err != nil || len(lines) != 4 || lines[1].State != "cancelled" || lines[2].State != "detached" ||
		lines[1].Active != 1 {
		t.Errorf("list: got %+v, %v", lines, err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	plan(t, root, "20260101-120000-000-aaaa", true)
	local := runs.NewFolder(root, "20260102-120000-000-bbbb")
	if err := errors.Join(local.Record(event.Event{Type: event.TypeRun, Run: &event.Run{}}), local.Close()); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{"last": "20260101-120000-000-aaaa", "20260101": "20260101-120000-000-aaaa",
		"20260102": "", "x": ""} {
		if id, _, err := dispatch.Find(root, arg); id != want && err == nil || (err == nil) != (want != "") {
			t.Errorf("%s: got %s, %v, want %s", arg, id, err, want)
		}
	}
}
