package app

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"fisub/remote/dispatch"
)

// Jobs of sanitize and compare belong to a plan: gc spares them while a client waits for them, and after a kill of the
// client attach shows their results.
func TestRemoteToolKept(t *testing.T) {
	work := t.TempDir()
	b := newRemoteBench(t, fmt.Sprintf("[remote.here]\nprovider = \"loopback\"\nworkdir = %q\ngpu = \"none\"\n", work))
	b.share(work)
	b.linger()
	for _, tc := range []struct{ args, want string }{
		{"sanitize --tool memcheck --workload 96825aea --on here --yes", "memcheck    clean\n"},
		{"compare --limit 1 --on here --yes . .", "1 workload: all pass in both runs"},
	} {
		for _, killed := range []bool{false, true} {
			client := b.command(strings.Fields(tc.args)...)
			var output bytes.Buffer
			client.Stdout, client.Stderr = &output, &output
			if err := client.Start(); err != nil {
				t.Fatal(err)
			}
			plan := b.awaitPlan(work)
			if killed {
				_ = client.Process.Kill()
				_ = client.Wait()
			}
			b.fisub(0, "remote", "gc", "--on", "here", "--yes")
			if text := b.stderr.String(); strings.Contains(text, "ended") {
				t.Errorf("%s: gc: got %s", tc.args, text)
			}
			letGo(t, work)
			text := ""
			if killed {
				text = b.fisub(0, "remote", "attach", plan.Run.ID)
			} else if err := client.Wait(); err != nil {
				t.Errorf("%s: %v\n%s", tc.args, err, &output)
			} else {
				text = output.String()
			}
			if !strings.Contains(text, tc.want) {
				t.Errorf("%s: killed %v: got %s, want %q", tc.args, killed, text, tc.want)
			}
			if again := b.fisub(0, "remote", "attach", plan.Run.ID); !strings.Contains(again, tc.want) {
				t.Errorf("%s: attach to what has ended: got %s, want %q", tc.args, again, tc.want)
			}
			nothingIn(t, work)
			hold(t, work)
		}
	}
}

// awaitPlan waits until a job has started, and returns the newest plan.
func (b *remoteBench) awaitPlan(work string) *dispatch.Plan {
	b.t.Helper()
	b.awaitJob(work)
	plan, err := dispatch.Load(b.lastFolder())
	if err != nil {
		b.t.Fatal(err)
	}
	return plan
}
