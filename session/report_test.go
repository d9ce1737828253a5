package session

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// A page is served without a file being written: of the newest run, whichever that is by then, or of those that are
// named.
func TestServe(t *testing.T) {
	p := &Project{Dir: t.TempDir()}
	serve := func(names ...string) (get func() string, end func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		url, ended := make(chan string, 1), make(chan error, 1)
		go func() {
			ended <- p.Report(ctx, ReportOptions{Version: "1", Runs: names, Serve: true}, io.Discard, &log{},
				func(v interface{ Text() string }) error { url <- v.(*Served).URL; return nil })
		}()
		var at string
		select {
		case at = <-url:
		case err := <-ended:
			t.Fatal(err)
		}
		return func() string {
				t.Helper()
				resp, err := http.Get(at)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("got %s, %v", resp.Status, err)
				}
				return string(text)
			}, func() {
				t.Helper()
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
	}
	files := func() (list string) {
		_ = filepath.WalkDir(p.Dir, func(name string, _ fs.DirEntry, _ error) error { list += name + "\n"; return nil })
		return list
	}
	has := func(page, what string, want ...string) {
		t.Helper()
		for _, text := range want {
			if !strings.Contains(page, text) {
				t.Errorf("%s: the page has no %q", what, text)
			}
		}
	}

	newest, end := serve()
	has(newest(), "no run", "There is no run below", `data-live="`, "connect-src 'self'")
	kept(t, p.Dir, "20260101-1", "aaa", 0, 10, 10, 100, 100)
	has(newest(), "one run", "run 20260101-1", "4 of 4 workloads PASSED")
	kept(t, p.Dir, "20260102-1", "bbb", 0, 5, 5, 0, 110)
	kept(t, p.Dir, "20260103-1", "ccc", 0, 5, 5, 110, 110)
	before := files()
	has(newest(), "three runs", "run 20260103-1", `id="history-runs"`)
	end()

	named, end := serve("20260101", "20260102")
	has(named(), "named", "run 20260101-1", "run 20260102-1")
	kept(t, p.Dir, "20260104-1", "ccc", 0, 5, 5, 110, 110)
	if strings.Contains(named(), "20260104-1") {
		t.Error("named: the page shows another run")
	}
	if _, err := p.RemoveRuns([]string{"20260104", "20260102"}, 0, nil); err != nil {
		t.Fatal(err)
	}
	has(named(), "removed", "No report yet", "neither events.jsonl nor samples.jsonl in it")
	end()
	if after := strings.Replace(before, before[strings.Index(before, p.Dir+"/.fisub/runs/20260102-1"):strings.Index(before,
		p.Dir+"/.fisub/runs/20260103-1")], "", 1); files() != after {
		t.Errorf("files: got\n%s, want\n%s", files(), after)
	}
}

// What does not go together is refused, and so is a run that is not there.
func TestServeRefused(t *testing.T) {
	p := &Project{Dir: t.TempDir()}
	out := "-"
	for want, o := range map[string]ReportOptions{
		"leave out -o and --format":           {Serve: true, Format: "html"},
		"--serve writes no file":              {Serve: true, Out: &out},
		"--port is for --serve":               {Port: 1},
		"name a file, or leave out --json":    {Out: &out, JSON: true},
		`no run "nope"`:                       {Serve: true, Runs: []string{"nope"}},
		"without --port fisub takes one that": {Serve: true, Port: 1 << 17},
		`no run "last"`:                       {},
	} {
		hinted(t, want, p.Report(t.Context(), o, io.Discard, &log{}, nil), want)
	}
}
