package tools

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		if names[f.name] || names[f.metric] {
			t.Errorf("%s is there twice", f.name)
		}
		names[f.name], names[f.metric] = true, true
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

// If a machine denies the counters, the error has a remedy and ncu's own name for the problem.
func TestDeniedCounters(t *testing.T) {
	err := deniedCounters("==PROF== Connected to process 12\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission " +
		"to access NVIDIA GPU Performance Counters on the target device 0.")
	if err == nil || !strings.Contains(err.Error(), "ERR_NVGPUCTRPERM") {
		t.Errorf("got %v", err)
	}
	if err := deniedCounters("==PROF== Disconnected from process 12"); err != nil {
		t.Errorf("got %v", err)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
