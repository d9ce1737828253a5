package app

import (
	"os"
	"strings"
	"testing"
)

// Jobs of sanitize and compare belong to a plan: gc spares them while a client waits for them, and after a kill of the
// client attach shows their results.
func TestRemoteToolKept(t *testing.T) {
	b, work := newLoopbackBench(t)
	b.share(work)
	b.linger()
	for _, tc := range []struct{ args, want string }{
		{"sanitize --tool memcheck --workload 96825aea --on here --yes", "memcheck    clean\n"},
		{"compare --limit 1 --on here --yes . .", "1 workload: all pass in both runs"},
	} {
		for _, killed := range []bool{false, true} {
			client := b.start(strings.Fields(tc.args)...)
			b.awaitJob(work)
			if killed {
				client.ends(os.Kill)
			}
			b.fisub(0, "remote", "gc", "--on", "here", "--yes")
			if text := b.stderr.String(); strings.Contains(text, "ended") {
				t.Errorf("%s: gc: got %s", tc.args, text)
			}
			letGo(t, work)
			if !killed {
				if status := client.ends(nil); status != 0 || !strings.Contains(client.out.String(), tc.want) {
					t.Errorf("%s: exit status %d\n%s", tc.args, status, &client.out)
				}
			}
			for range 2 { // also after the end
				if text := b.fisub(0, "remote", "attach", "last"); !strings.Contains(text, tc.want) {
					t.Errorf("%s: killed %v: got %s, want %q", tc.args, killed, text, tc.want)
				}
			}
			nothingIn(t, work)
			hold(t, work)
		}
	}
}
