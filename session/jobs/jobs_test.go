package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/bench/runs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/remote"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
)

// A host is a provider of n places that holds jobs and their logs.
type host struct {
	remote.Provider // what is not asked for
	places          int
	held            []string
	down            error
	hosts           []remote.Host
}

func (h *host) Check(ctx context.Context) ([]remote.Host, error) {
	if h.hosts == nil {
		<-ctx.Done() // it takes its time
	}
	return h.hosts, ctx.Err()
}

// Nothing is compiled for hosts that could not run it, and what is compiled waits for no host.
func TestAsking(t *testing.T) {
	down := remote.Host{State: "down", Err: &remote.Denied{Code: "no-driver", Provider: "lab", Host: "h1", Text: "no GPU"}}
	busy := remote.Host{State: "busy"}
	compile := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	open := func(hosts ...*host) providers.Set {
		set := providers.Set{}
		for i, h := range hosts {
			set[string(rune('a'+i))] = h
		}
		return set
	}
	err := Asking(t.Context(), open(&host{hosts: []remote.Host{down, down}}, &host{hosts: []remote.Host{down}}), compile)
	if remote.CodeOf(err) != "no-driver" {
		t.Errorf("hosts that are down: got %v", err)
	}
	for name, set := range map[string]providers.Set{
		"slow":         open(&host{}),
		"one is busy":  open(&host{hosts: []remote.Host{down, busy}}),
		"another one":  open(&host{hosts: []remote.Host{down}}, &host{hosts: []remote.Host{busy}}),
		"nobody asked": nil,
	} {
		if err := Asking(t.Context(), set, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := Asking(ctx, set, compile); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, given up: got %v", name, err)
		}
		cancel()
	}
}

func (h *host) Places(n int) []remote.Place { return make([]remote.Place, min(n, h.places)) }

func (h *host) List(context.Context) ([]remote.Handle, error) {
	var all []remote.Handle
	for _, job := range h.held {
		all = append(all, remote.Handle{Job: job})
	}
	return all, h.down
}

func TestChosen(t *testing.T) {
	two := map[string]*config.Table{"lab": {}, "cloud": {}}
	for _, tc := range []struct {
		name   string
		tables map[string]*config.Table
		on     string
		all    bool
		want   []string
		fault  string
	}{
		{"named", two, "lab, loopback", false, []string{"lab", "loopback"}, ""},
		{"twice", two, "lab,lab", false, nil, "--on"},
		{"nothing between commas", two, "lab,,cloud", false, nil, "--on"},
		{"the only one", map[string]*config.Table{"lab": {}}, "", false, []string{"lab"}, ""},
		{"which", two, "", false, nil, "which of the tables cloud, lab?"},
		{"all", two, "", true, []string{"cloud", "lab"}, ""},
		{"none", nil, "", true, nil, "no table [remote.NAME]"},
	} {
		got, err := Chosen(tc.tables, tc.on, tc.all)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.fault == "") || err != nil &&
			!strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: got %v, %v, want %v, %q", tc.name, got, err, tc.want, tc.fault)
		}
	}
}

func TestCommon(t *testing.T) {
	commons := map[string]remote.Common{"a": remote.Common{GPU: "B200", Limit: time.Hour},
		"b": remote.Common{GPU: "h200", Limit: time.Minute}, "c": {}}
	for _, tc := range []struct {
		name  string
		o     Options
		names []string
		gpu   string
		limit time.Duration
		fault string
	}{
		{"of the table", Options{}, []string{"a", "c"}, "b200", time.Hour, ""},
		{"usual", Options{}, []string{"c"}, "", defaultLimit, ""},
		{"of the flags", Options{GPU: "none", Limit: time.Second}, []string{"a", "b"}, "none", time.Second, ""},
		{"the shortest limit", Options{GPU: "a10"}, []string{"a", "b"}, "a10", time.Minute, ""},
		{"two GPUs", Options{}, []string{"a", "b"}, "", 0, "several GPUs"},
	} {
		gpu, limit, err := common(tc.o, tc.names, commons)
		if gpu != tc.gpu || limit != tc.limit || (err == nil) != (tc.fault == "") || err != nil &&
			!strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: got %s, %v, %v", tc.name, gpu, limit, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	open := providers.Set{"a": &host{places: 3}, "b": &host{places: 8}}
	for _, tc := range []struct {
		name      string
		o         Options
		workloads int
		want      int
	}{
		{"all that the workloads can use", Options{}, 5, 3 + 5},
		{"one workload", Options{}, 1, 2},
		{"shards", Options{Shards: 4}, 20, 4},
		{"shards of the first table", Options{Shards: 2}, 20, 2},
	} {
		if got := len(places(tc.o, tc.workloads, []string{"a", "b"}, open)); got != tc.want {
			t.Errorf("%s: got %d places, want %d", tc.name, got, tc.want)
		}
	}
}

// plan writes a run folder below root.
func plan(t *testing.T, root, id string, done bool, jobs ...*dispatch.Job) string {
	t.Helper()
	folder := runs.New(root, id)
	p := &dispatch.Plan{Version: 1, Run: event.Run{ID: id}, Jobs: jobs, Done: done}
	if err := errors.Join(p.Save(folder.Path()), folder.Close()); err != nil {
		t.Fatal(err)
	}
	return folder.Path()
}

// What nobody waits for can be ended. What may have results that a run here lacks, and what was begun elsewhere, is told
// as such. A job on a host of two tables is one job.
func TestOrphans(t *testing.T) {
	root := t.TempDir()
	now := time.Now()
	w := []event.Workload{{UUID: "w0"}, {UUID: "w1"}}
	write := func(id string, jobs ...*dispatch.Job) string {
		t.Helper()
		folder := runs.New(root, id)
		p := &dispatch.Plan{Version: 1, Run: event.Run{ID: id, Workloads: w}, Jobs: jobs}
		if err := errors.Join(p.Save(folder.Path()), folder.Close()); err != nil {
			t.Fatal(err)
		}
		return folder.Path()
	}
	write("20260101-1", &dispatch.Job{ID: "fisub-20260101-1-1", Workloads: []string{"w0"}},
		&dispatch.Job{ID: "fisub-20260101-1-2", Workloads: []string{"w1"}, Ended: &now})
	// In this run w0 has its verdict, so job 1 has nothing that it lacks.
	dir := write("20260102-1", &dispatch.Job{ID: "fisub-20260102-1-1", Workloads: []string{"w0"}},
		&dispatch.Job{ID: "fisub-20260102-1-2", Workloads: []string{"w1"}})
	events := `{"seq":1,"type":"run","run":{"workloads":[{"uuid":"w0"},{"uuid":"w1"}]}}
{"seq":2,"type":"evaluated","workload":"w0","evaluated":{"status":"PASSED"}}
`
	if err := os.WriteFile(filepath.Join(dir, "events.jsonl"), []byte(events), 0o600); err != nil {
		t.Fatal(err)
	}
	cancelled := write("20260103-1", &dispatch.Job{ID: "fisub-20260103-1-1", Workloads: []string{"w0"}})
	if err := dispatch.Mark(cancelled); err != nil {
		t.Fatal(err)
	}
	held := []string{"fisub-20260101-1-1", "fisub-20260101-1-2", "fisub-20260102-1-1", "fisub-20260102-1-2",
		"fisub-20260102-1-7", "fisub-20260103-1-1", "fisub-elsewhere-0"}
	open := providers.Set{"lab": &host{held: held}, "too": &host{held: held}, "down": &host{down: io.ErrUnexpectedEOF}}
	got, err := Orphans(t.Context(), root, open, []string{"down", "lab", "too"})
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
	lines, err := List(root, nil)
	if err != nil || len(lines) != 3 || lines[0].State != "cancelled" || lines[1].State != "detached" ||
		lines[0].Active != 1 {
		t.Errorf("list: got %+v, %v", lines, err)
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	plan(t, root, "20260101-120000-000-aaaa", true)
	local := runs.New(root, "20260102-120000-000-bbbb")
	if err := errors.Join(local.Record(event.Event{Type: event.TypeRun, Run: &event.Run{}}), local.Close()); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{"last": "20260101-120000-000-aaaa", "20260101": "20260101-120000-000-aaaa",
		"20260102": "", "x": ""} {
		if id, _, err := Find(root, arg); id != want && err == nil || (err == nil) != (want != "") {
			t.Errorf("%s: got %s, %v, want %s", arg, id, err, want)
		}
	}
}
