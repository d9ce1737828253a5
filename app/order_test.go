package app

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/internal/config"
	"fisub/remote"
	"fisub/remote/dispatch"
	"fisub/remote/providers"
)

// A fakeHost is a provider of n places.
type fakeHost struct {
	remote.Provider // methods that are not called
	places          int
	hosts           []remote.Host
}

func (h *fakeHost) Check(ctx context.Context) ([]remote.Host, error) {
	if h.hosts == nil {
		<-ctx.Done() // a slow host
	}
	return h.hosts, ctx.Err()
}

// Nothing is compiled for hosts that could not run it, and compiling does not wait for a host.
func TestWhileCheckingHosts(t *testing.T) {
	down := remote.Host{State: "down", Err: &remote.Denied{Code: "no-driver", Provider: "lab", Host: "h1", Text: "no GPU"}}
	busy := remote.Host{State: "busy"}
	compile := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	open := func(hosts ...*fakeHost) providers.Set {
		set := providers.Set{}
		for i, h := range hosts {
			set[string(rune('a'+i))] = h
		}
		return set
	}
	err := whileCheckingHosts(t.Context(), open(&fakeHost{hosts: []remote.Host{down, down}}, &fakeHost{hosts: []remote.Host{down}}), compile)
	if remote.CodeOf(err) != "no-driver" {
		t.Errorf("hosts that are down: got %v", err)
	}
	for name, set := range map[string]providers.Set{
		"slow":         open(&fakeHost{}),
		"one is busy":  open(&fakeHost{hosts: []remote.Host{down, busy}}),
		"another one":  open(&fakeHost{hosts: []remote.Host{down}}, &fakeHost{hosts: []remote.Host{busy}}),
		"nobody asked": nil,
	} {
		if err := whileCheckingHosts(t.Context(), set, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: got %v", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := whileCheckingHosts(ctx, set, compile); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s, given up: got %v", name, err)
		}
		cancel()
	}
}

func (h *fakeHost) Places(n int) []remote.Place { return make([]remote.Place, min(n, h.places)) }

func TestChosen(t *testing.T) {
	two := map[string]*config.Table{"lab": {}, "cloud": {}}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none"))
	t.Setenv("MODAL_TOKEN_ID", "")
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
		{"which", two, "", false, nil, "several tables in the config: cloud, lab"},
		{"all", two, "", true, []string{"cloud", "lab"}, ""},
		{"none", nil, "", true, nil, "no table [remote.NAME]"},
	} {
		got, err := tablesOf(tc.tables, tc.on, tc.all)
		if !slices.Equal(got, tc.want) || (err == nil) != (tc.fault == "") || err != nil &&
			!strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: got %v, %v, want %v, %q", tc.name, got, err, tc.want, tc.fault)
		}
	}
}

func TestTermsOf(t *testing.T) {
	commons := map[string]remote.Common{"a": remote.Common{GPU: "B200", Limit: time.Hour},
		"b": remote.Common{GPU: "h200", Limit: time.Minute}, "c": {}}
	for _, tc := range []struct {
		name  string
		o     hostOptions
		names []string
		gpu   string
		kind  string
		limit time.Duration
		fault string
	}{
		{"of the table", hostOptions{}, []string{"a", "c"}, "b200", "cuda", time.Hour, ""},
		{"usual", hostOptions{}, []string{"c"}, "", "cuda", defaultLimit, ""},
		{"of the flags", hostOptions{Terms: dispatch.Terms{GPU: "none", Limit: time.Second}}, []string{"a", "b"}, "", "emu", time.Second, ""},
		{"the shortest limit", hostOptions{Terms: dispatch.Terms{GPU: "a10"}}, []string{"a", "b"}, "a10", "cuda", time.Minute, ""},
		{"two GPUs", hostOptions{}, []string{"a", "b"}, "", "", 0, "different GPUs"},
	} {
		got, kind, err := termsOf(tc.o, hosts{names: tc.names, terms: commons})
		if got.GPU != tc.gpu || kind != tc.kind || got.Limit != tc.limit || (err == nil) != (tc.fault == "") || err != nil &&
			!strings.Contains(err.Error(), tc.fault) {
			t.Errorf("%s: got %+v, %s, %v", tc.name, got, kind, err)
		}
	}
}

func TestPlaces(t *testing.T) {
	open := providers.Set{"a": &fakeHost{places: 3}, "b": &fakeHost{places: 8}}
	for _, tc := range []struct {
		name      string
		o         hostOptions
		workloads int
		want      int
	}{
		{"all that the workloads can use", hostOptions{}, 5, 3 + 5},
		{"one workload", hostOptions{}, 1, 2},
		{"shards", hostOptions{Shards: 4}, 20, 4},
		{"shards of the first table", hostOptions{Shards: 2}, 20, 2},
	} {
		if got := len(placesOf(tc.o, tc.workloads, hosts{names: []string{"a", "b"}, open: open})); got != tc.want {
			t.Errorf("%s: got %d places, want %d", tc.name, got, tc.want)
		}
	}
}
