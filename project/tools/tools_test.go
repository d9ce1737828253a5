package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fisub/bench/worker"
	"fisub/device"
	"fisub/device/vgpu"
	"fisub/internal/longtest"
	"fisub/internal/ui"
	"fisub/project"
	"fisub/project/setup"
)

// The figures of a profile are available by name in base units, and as a table.
func TestFigures(t *testing.T) {
	const head = `"ID","Kernel Name","Block Size","dram__bytes_read.sum","gpu__time_duration.sum","launch__grid_size"` +
		"\n" +
		`"","","","byte","ns",""` + "\n"
	for _, tc := range []struct{ name, raw, want, fault string }{
		{"two kernels behind ncu's messages", "==PROF== Connected\n" + head +
			`"0","void f<1>(float *, int)","(128, 1, 1)","33,828,864","17152.000000","4,096"` + "\n" +
			`"1","g(int)","(32, 1, 1)","n/a","2000","1"` + "\n",
			"kernel      void f<1>(float *, int)\n  duration                 17.15 us\n" +
				"  blocks                   4096\n    duration               17.152 us\n" +
				"    dram read              33.8289 MB\n    grid                   4096\n" +
				"kernel      g(int)\n  duration                 2.00 us\n  blocks                   1\n" +
				"    duration               2 us\n    dram read              n/a\n" +
				"    grid                   1\n", ""},
		{"no kernel", head, "", "no kernel in the report"},
		{"short row", head + `"0","f()"` + "\n", "kernel      f()\n", ""},
		{"no report", "", "", "no kernel in the report"},
		{"a terminal's controls", head + "\"0\",\"f\x1b[2J\"\n", "kernel      f\ufffd[2J\n", ""},
	} {
		var out bytes.Buffer
		kernels, err := Figures([]byte(tc.raw))
		Table(&out, kernels, true)
		if got := out.String(); got != tc.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tc.name, got, tc.want)
		}
		if got := errText(err); got != tc.fault {
			t.Errorf("%s: got error %q, want %q", tc.name, got, tc.fault)
		}
		if _, err := json.Marshal(kernels); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	names := map[string]bool{}
	for _, f := range figures {
		if names[f.metric] {
			t.Errorf("%s is there twice", f.metric)
		}
		names[f.metric] = true
	}
	if len(figures) < 20 {
		t.Errorf("got %d figures", len(figures))
	}
}

// A report of any size arrives unchanged.
func TestReportSent(t *testing.T) {
	dir := t.TempDir()
	for _, size := range []int{0, 1, partSize - 1, partSize, partSize + 1, 3*partSize + 7} {
		want := bytes.Repeat([]byte("\x00\xff\n"), size/3+1)[:size]
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		if err := os.WriteFile(from, want, 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(to)
		var sent bytes.Buffer
		if err := Send(&sent, from); err != nil {
			t.Fatal(err)
		}
		r := ReportFile{Path: to}
		for line := range bytes.Lines(sent.Bytes()) {
			var l Record
			if err := json.Unmarshal(line, &l); err != nil {
				t.Fatal(err)
			}
			if err := r.Take(l.Part); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := os.ReadFile(to); !bytes.Equal(got, want) {
			t.Errorf("%d bytes: got %d", size, len(got))
		}
	}
	r := ReportFile{Path: filepath.Join(dir, "large"), size: maxReport}
	if err := r.Take([]byte("x")); err == nil {
		t.Error("a report without end is taken")
	}
}

// The test binary is the worker of its own runs.
func TestMain(m *testing.M) {
	if in, out, err := worker.Pipes(); err == nil {
		if err := worker.Serve(context.Background(), in, out, []device.Opener{vgpu.Opener()}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ncu stands in for Nsight Compute on a machine whose driver refuses performance counters: it runs the program, and has
// only metrics that need no permission. It knows no value of the first one. A real refusal needs a GPU with such a
// driver.
const ncu = `#!/bin/sh
while :; do
  case $1 in
    --import) cat "$2"; exit ;;
    --set) set=$2; shift 2 ;;
    --metrics) metrics=$2; shift 2 ;;
    --export) file=$2; shift 2 ;;
    --clock-control | --target-processes) shift 2 ;;
    --force-overwrite) shift ;;
    *) break ;;
  esac
done
"$@" || exit
if [ -n "$set" ]; then
  echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
  exit 1
fi
{
  echo '"ID","Kernel Name",'"$(echo "$metrics" | sed 's/,/","/g; s/.*/"&"/')"
  echo '"",""'"$(echo "$metrics" | sed 's/[^,]*/,""/; s/,[a-z][^,]*/,""/g')"
  echo '"0","f()"'"$(echo "$metrics" | sed 's/[^,]*/,"nan"/; s/,[a-z][^,]*/,"7"/g')"
} > "$file"
`

// A profile without permission for the counters has the metrics that need none, and says what is missing.
func TestProfileRefused(t *testing.T) {
	longtest.Skip(t, "compiles this repository's kernel")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ncu"), []byte(ncu), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	p := project.Project{Dir: "../.."}
	s, err := p.Load("")
	if err != nil {
		t.Fatal(err)
	}
	run, err := New(t.Context(), s, setup.Options{Device: "emu"}, &ui.Terminal{Out: io.Discard, Err: io.Discard})
	if err != nil {
		longtest.Missing(t, "toolchain", err)
	}
	folder := t.TempDir()
	l, err := run.Profile(t.Context(), "detailed", folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ERR_NVGPUCTRPERM", "stalls are missing", "ncu has no value of instructions"} {
		if !strings.Contains(l.Log, want) {
			t.Errorf("got the log %q, want %q", l.Log, want)
		}
	}
	stored, err := ReadProfile(folder)
	if err != nil || len(stored.Kernels) != 1 || stored.Kernels[0].value("global_sectors") != 7 ||
		stored.Kernels[0].Limiter == "" {
		t.Errorf("got %+v, %v", stored, err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
