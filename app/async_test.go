package app

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fisub/device/vgpu/vgputest"
	"fisub/internal/longtest"
)

// asyncKinds are the kinds of findings in async.txt with their texts.
var asyncKinds = map[string]*regexp.Regexp{
	"async-copy":     regexp.MustCompile(`still (reads|writes)`),
	"proxy-fence":    regexp.MustCompile(`no fence\.proxy`),
	"mbarrier":       regexp.MustCompile(`an mbarrier that is (in use|not initialised)`),
	"cluster":        regexp.MustCompile(`access to shared memory of the cluster's block`),
	"race":           regexp.MustCompile(`race on (shared|global) memory`),
	"race-of-blocks": regexp.MustCompile(`block \(.*race on shared memory.*of block \(`),
}

// emuPrograms returns a function that runs fisub in testdata/kernels, and a folder for the compiled programs.
func emuPrograms(t *testing.T) (fisub func(t *testing.T, args ...string) (stdout, stderr string, err error), bin string) {
	t.Helper()
	longtest.CI(t, "compiles the library")
	t.Parallel()
	if err := vgputest.Library(); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cache := newCache(t)
	return func(t *testing.T, args ...string) (string, string, error) {
		var errOut strings.Builder
		cmd := exec.CommandContext(t.Context(), self, args...)
		cmd.Dir, cmd.Stderr = filepath.Join("testdata", "kernels"), &errOut
		cmd.Env = append(os.Environ(), "FISUB_CACHE="+cache)
		out, err := cmd.Output()
		return string(out), errOut.String(), err
	}, t.TempDir()
}

// The kernels of testdata/kernels/async_*.cu give the right results and no findings; each one with a mistake has a
// finding of its kind at a marked line.
func TestAsync(t *testing.T) {
	fisub, bin := emuPrograms(t)
	kernels := filepath.Join("testdata", "kernels")
	list, err := os.ReadFile(filepath.Join(kernels, "async.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range strings.Split(string(list), "\n\n") {
		lines := strings.Split(strings.TrimSpace(part), "\n")
		if i == 0 { // the comment
			continue
		}
		compile := strings.Fields(lines[0])
		source := compile[0]
		t.Run(strings.TrimSuffix(source, ".cu"), func(t *testing.T) {
			t.Parallel()
			program := filepath.Join(bin, strings.TrimSuffix(source, ".cu"))
			args := append([]string{"nvcc", "-o", program}, compile...)
			if _, stderr, err := fisub(t, args...); err != nil {
				t.Fatalf("%v\n%s", err, stderr)
			}
			marks := asyncMarks(t, filepath.Join(kernels, source))
			names, _, err := fisub(t, "emu", program)
			if err != nil || len(strings.Fields(names)) != len(lines)-1 {
				t.Errorf("kernels: got %v (%v), want those of async.txt", strings.Fields(names), err)
			}
			for _, line := range lines[1:] {
				name, want := strings.Fields(line)[0], strings.Fields(line)[1:]
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					stdout, stderr, err := fisub(t, "emu", "--timeout", "60s", program, name)
					var exit *exec.ExitError
					if err != nil && !errors.As(err, &exit) {
						t.Fatal(err)
					}
					if fault := asyncVerdict(name, want, marks[name], stdout, stderr); fault != "" {
						t.Errorf("%s\n%s%s", fault, stdout, stderr)
					}
				})
			}
		})
	}
}

// TestNarrowProduct runs a product of nvfp4 matrices with every check, and three mistakes in it.
func TestNarrowProduct(t *testing.T) {
	fisub, bin := emuPrograms(t)
	program := filepath.Join(bin, "nvfp4")
	if _, stderr, err := fisub(t, "nvcc", "-arch=sm_100a", "-lineinfo", "-o", program, "nvfp4.cu"); err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	for _, c := range []struct {
		name, want string
		status     int
	}{
		{"nvfp4", "\nnvfp4 right\nfisub: 1 kernel launched, 0 faults, 0 warnings; every launch checked", 0},
		{"scales", "scales wrong: ", 1},
		{"commit", "nvfp4.cu:66:3, in wait at async.cuh:45:3, in try_wait at async.cuh:41:35: kernel nvfp4, block (0,0,0), " +
			"thread (0,0,0): deadlock: 128 threads of the block wait forever, this one for phase 0 of the mbarrier", 3},
		{"descriptor", "in multiply at nvfp4.cu:24:22: kernel nvfp4, block (0,0,0), thread (0,0,0): invalid read of 16 bytes of shared " +
			"memory at 37888, which has 37888 bytes", 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, err := fisub(t, "emu", "--timeout", "60s", "--sanitize", "racecheck,initcheck,synccheck,memcheck", program, c.name)
			var exit *exec.ExitError
			if text := "\n" + stdout + stderr; !strings.Contains(regexp.MustCompile("(?m)^fisub: note: allocation .*\n").ReplaceAllString(text, ""), c.want) {
				t.Errorf("got %s, want %q", text, c.want)
			}
			if errors.As(err, &exit) && exit.ExitCode() != c.status || (err == nil) != (c.status == 0) {
				t.Errorf("got %v, want the status %d", err, c.status)
			}
		})
	}
}

// asyncVerdict compares a kernel's output with the wanted kinds of findings. It returns "" if they agree. The places of
// findings are file:line.
func asyncVerdict(name string, want, places []string, stdout, stderr string) string {
	var findings []string
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "fisub: warning: ") || strings.HasPrefix(line, "fisub: fault: ") {
			findings = append(findings, line)
		}
	}
	switch want[0] {
	case "ok", "note":
		switch {
		case len(findings) > 0:
			return fmt.Sprintf("got %d findings, want none", len(findings))
		case stdout != name+" right\n":
			return "got a wrong result, want the right one"
		case want[0] == "ok" && strings.Contains(stderr, "note:"):
			return "got a note, want none"
		}
		return ""
	}
	found := false
	for _, text := range findings {
		for kind, re := range asyncKinds {
			if !re.MatchString(text) {
				continue
			}
			if slices.Contains(want, kind) {
				found = found || slices.ContainsFunc(places, func(p string) bool { return strings.Contains(text, p+":") })
			} else if !strings.HasPrefix(kind, "race") {
				return fmt.Sprintf("got a finding of kind %s, want %s", kind, strings.Join(want, " or "))
			}
		}
	}
	if !found {
		return fmt.Sprintf("got no finding of kind %s at %s", strings.Join(want, " or "), strings.Join(places, " or "))
	}
	return ""
}

// asyncMarks returns the places marked in a source with the names of kernels. A mark on a line of its own is for the
// next line.
func asyncMarks(t *testing.T, path string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cases := regexp.MustCompile(`(?m)^    \{"([^"]+)"`).FindAllStringSubmatch(string(data), -1)
	marks := map[string][]string{}
	for i, line := range strings.Split(string(data), "\n") {
		code, names, ok := strings.Cut(line, "// hazard: ")
		if !ok {
			continue
		}
		number := i + 1
		if strings.TrimSpace(code) == "" {
			number++
		}
		for _, mark := range strings.Fields(names) {
			known := false
			for _, c := range cases {
				if ok, _ := filepath.Match(mark, c[1]); ok {
					known = true
					marks[c[1]] = append(marks[c[1]], fmt.Sprintf("%s:%d", filepath.Base(path), number))
				}
			}
			if !known {
				t.Errorf("%s:%d: no kernel %s", path, number, mark)
			}
		}
	}
	return marks
}
