package jobs

import (
	"context"
	"errors"
	"io"
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
	commons := map[string]providers.Terms{"a": {Common: remote.Common{GPU: "B200", Limit: time.Hour}},
		"b": {Common: remote.Common{GPU: "h200", Limit: time.Minute}}, "c": {}}
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
		{"a race", Options{Race: true}, 20, 2},
	} {
		if got := len(places(tc.o, tc.workloads, []string{"a", "b"}, open, nil)); got != tc.want {
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

func TestOrphans(t *testing.T) {
	root := t.TempDir()
	now := time.Now()
	plan(t, root, "20260101-1", false, &dispatch.Job{ID: "fisub-20260101-1-0"},
		&dispatch.Job{ID: "fisub-20260101-1-1", Ended: &now})
	plan(t, root, "20260102-1", true, &dispatch.Job{ID: "fisub-20260102-1-0"})
	waited, ended, over, lost, strange := "fisub-20260101-1-0", "fisub-20260101-1-1", "fisub-20260102-1-0",
		"fisub-20260102-1-7", "fisub-elsewhere-0"
	open := providers.Set{"lab": &host{held: []string{waited, ended, over, lost, strange}},
		"down": &host{down: io.ErrUnexpectedEOF}}
	for _, all := range []bool{false, true} {
		want, others := []string{ended, over, lost}, 1
		if all {
			want, others = append(want, strange), 0
		}
		got, strangers, err := Orphans(t.Context(), root, open, []string{"down", "lab"}, all)
		var jobs []string
		for _, o := range got {
			jobs = append(jobs, o.Job)
		}
		if !slices.Equal(jobs, want) || strangers != others || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("all %v: got %v and %d strangers, %v, want %v and %d", all, jobs, strangers, err, want, others)
		}
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
