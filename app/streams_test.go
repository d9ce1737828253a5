package app

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The programs of testdata/kernels/streams.cu give the right results. With --sanitize, those with a mistake have the
// finding of streams.txt, and the others none.
func TestStreams(t *testing.T) {
	fisub, bin := emuPrograms(t)
	list, err := os.ReadFile(filepath.Join("testdata", "kernels", "streams.txt"))
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "streams")
	if _, stderr, err := fisub(t, "nvcc", "-O2", "-lineinfo", "-o", program, "streams.cu"); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	names, _, err := fisub(t, "emu", program)
	if err != nil {
		t.Fatal(err)
	}
	left := strings.Fields(names)
	for line := range strings.Lines(string(list)) {
		name, want, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || name == "#" {
			continue
		}
		if len(left) == 0 || left[0] != name {
			t.Fatalf("programs: got %v, want %s first", left, name)
		}
		left = left[1:]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, err := fisub(t, "emu", "--sanitize", "racecheck,memcheck", "--timeout", "60s", program, name)
			if want = strings.TrimSpace(want); want == "ok" {
				want = `^fisub: \d+ kernels? launched, 0 faults, 0 warnings;.*\n$`
			} else {
				want = `(?m)^fisub: fault: .*` + want
			}
			if stdout != "right\n" || !regexp.MustCompile(want).MatchString(stderr) || strings.Count(stderr, "fault: ") > 1 {
				t.Errorf("got %v, %s%s, want right, and a text that matches %s", err, stdout, stderr, want)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("programs without an entry in streams.txt: %v", left)
	}
}
