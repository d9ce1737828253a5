package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"fisub/project/setup"
)

// A FIFO where a file is read fails at once: nobody writes to it, so a command that opened it would wait until go test
// ends the test.
func TestFIFOs(t *testing.T) {
	const (
		run    = ".fisub/runs/20260101-000000-000aaa/"
		events = `{"seq":1,"type":"run","run":{"schema":"fisub.event/1","workloads":[{"uuid":"w"}]}}` + "\n"
		id     = "20260101-000000-000aaa"
		toy    = `{"name":"d","op_type":"elem","axes":{"n":{"type":"var"}},
			"inputs":{"x":{"shape":["n"],"dtype":"float32"}},"outputs":{"y":{"shape":["n"],"dtype":"float32"}},
			"reference":"def run(x):\n    return x\n"}`
	)
	for _, test := range []struct {
		fifo string            // relative to the project
		more map[string]string // other files to create
		args string            // without -C
		exit int
	}{
		{"config.toml", nil, "check --arch none", exitUsage},
		{"config.toml", nil, "pack", exitUsage},
		{"config.toml", nil, "local --device emu --limit 1", exitUsage},
		{"s.json", nil, "check s.json", exitUsage},
		{"t.jsonl", nil, "check t.jsonl", exitUsage},
		{"s.json", nil, "unpack s.json out", exitUsage},
		{"s.json", nil, "local --device emu --limit 1 --solution s.json", exitUsage},
		{"s.json", nil, "compare --device emu --limit 1 s.json s.json", exitUsage},
		{run + "events.jsonl", nil, "runs show " + id, exitUsage},
		{run + "events.jsonl", nil, "local --device emu --limit 1 --resume " + id, exitUsage},
		{run + "run.json", map[string]string{run + "samples.jsonl": ""}, "runs show " + id, exitUsage},
		{run + "samples.jsonl", nil, "runs show " + id, exitUsage},
		{run + "traces.jsonl", map[string]string{run + "samples.jsonl": "", run + "run.json": "{}"}, "runs show " + id,
			exitUsage},
		{run + "remote.json", map[string]string{run + "events.jsonl": events}, "remote attach " + id, exitError},
		{run + "remote.json", map[string]string{run + "events.jsonl": events}, "remote cancel " + id, exitError},
		{run + "remote.json", map[string]string{run + "events.jsonl": events}, "remote logs " + id, exitError},
		{"data/definitions/d.json", nil, "--dataset data dataset verify", exitUsage},
		{"data/workloads/d.jsonl", map[string]string{"data/definitions/d.json": toy}, "--dataset data dataset verify", exitUsage},
		{"other/d.json", nil, "--dataset data dataset import other/d.json", exitUsage},
	} {
		dir := t.TempDir()
		if err := copySubmission("..", dir); err != nil {
			t.Fatal(err)
		}
		fifo := filepath.Join(dir, test.fifo)
		_ = os.Remove(fifo)
		if err := errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o755), syscall.Mkfifo(fifo, 0o600)); err != nil {
			t.Fatal(err)
		}
		for name, text := range test.more {
			name = filepath.Join(dir, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		var out, errs bytes.Buffer
		got := Main(append([]string{"fisub", "-C", dir}, strings.Fields(test.args)...), strings.NewReader(""), &out, &errs)
		text := errs.String() + out.String()
		t.Logf("%s as FIFO: %s: %d\n%s", test.fifo, test.args, got, text)
		if got != test.exit || !strings.Contains(text, filepath.Base(test.fifo)) || !strings.Contains(text, "FIFO") {
			t.Errorf("%s: %s: got %d, want %d and the FIFO's name", test.fifo, test.args, got, test.exit)
		}
	}
}

// The list of baselines reads the config of each.
func TestFIFOOfBaseline(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "solution", "baselines", "x", "config.toml")
	if err := errors.Join(os.MkdirAll(filepath.Dir(fifo), 0o755), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	if names := setup.BaselineNames(dir, ""); !slices.Contains(names, "x") {
		t.Errorf("got %q, want x among them", names)
	}
}

// Commands that take a packed solution refuse sources that a builder cannot write.
func TestUnwritableSolution(t *testing.T) {
	dir := t.TempDir()
	if err := copySubmission("..", dir); err != nil {
		t.Fatal(err)
	}
	const sol = `{"name":"n","definition":"gdn_decode_qk4_v8_d128_k_last","author":"a","spec":{"language":"cuda",
		"target_hardware":["cuda"],"entry_point":"kernel.cu::kernel"},
		"sources":[{"path":"kernel.cu","content":"x"},{"path":"kernel.cu/inner.cu","content":"x"}]}`
	if err := os.WriteFile(filepath.Join(dir, "s.json"), []byte(sol), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"check s.json", "unpack s.json out", "local --device emu --limit 1 --solution s.json",
		"compare --device emu --limit 1 s.json s.json"} {
		var out, errs bytes.Buffer
		got := Main(append([]string{"fisub", "-C", dir}, strings.Fields(args)...), strings.NewReader(""), &out, &errs)
		const want = "Source path 'kernel.cu' is both a file and a folder, of 'kernel.cu/inner.cu'"
		if got != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: got %d and %s, want %s", args, got, errs.String(), want)
		}
	}
}

// FIFOs and links to themselves among the sources are skipped, and a link to itself does not lead out of the project.
func TestOddSources(t *testing.T) {
	dir := t.TempDir()
	if err := copySubmission("..", dir); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := errors.Join(syscall.Mkfifo("solution/cuda/pipe.cuh", 0o600),
		os.Symlink("self.cuh", "solution/cuda/self.cuh"), os.Symlink("gone.cuh", "solution/cuda/absent.cuh")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"fisub", "pack"}, {"fisub", "-C", dir, "pack"}} {
		var out, errs bytes.Buffer
		got := Main(args, strings.NewReader(""), &out, &errs)
		if got != exitOK {
			t.Errorf("%q: got %d and %s", args, got, errs.String())
		}
		for _, want := range []string{"pipe.cuh, 0 bytes: not a regular file", "self.cuh, 0 bytes: link to itself",
			"absent.cuh, 0 bytes: broken link"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q: got %s, want %s", args, out.String(), want)
			}
		}
	}
}
