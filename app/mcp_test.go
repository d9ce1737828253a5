package app

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"fisub/app/outcome"
	"fisub/internal/longtest"
	"fisub/runs"
)

// A client of the protocol gets from an empty folder to a run that passes with calls of tools and an edit. A cancelled
// call ends its run. No tool reaches outside of the project.
func TestMCP(t *testing.T) {
	t.Parallel()
	longtest.Skip(t, "runs on the emulator")
	dir := t.TempDir()
	cmd := exec.Command("fisub", "mcp", "-C", dir)
	cmd.Env = append(os.Environ(), "FISUB_CACHE="+newCache(t), "FIB_DATASET_PATH=")
	cmd.Stderr = t.Output()
	var progress sync.Map // progress messages by token
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			at, _ := progress.LoadOrStore(r.Params.ProgressToken, make(chan string, 100))
			at.(chan string) <- r.Params.Message
		}})
	s, err := client.Connect(t.Context(), &mcp.LoggingTransport{Transport: &mcp.CommandTransport{Command: cmd},
		Writer: t.Output()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	call := func(ctx context.Context, name, token string, args map[string]any) (o outcome.Outcome, failed bool, text string) {
		t.Helper()
		p := &mcp.CallToolParams{Name: name, Arguments: args}
		if token != "" {
			p.SetProgressToken(token)
		}
		res, err := s.CallTool(ctx, p)
		if err != nil {
			return o, true, err.Error()
		}
		text = res.Content[0].(*mcp.TextContent).Text
		_ = json.Unmarshal([]byte(text), &o) // only the fields that the tests need
		return o, res.IsError, text
	}
	if _, failed, text := call(t.Context(), "init", "", map[string]any{"definition": "gdn_decode_qk4_v8_d128_k_last",
		"author": "me"}); failed {
		t.Fatal(text)
	}
	kernel := filepath.Join(dir, "solution", "cuda", "kernel.cu")
	right, err := os.ReadFile(kernel)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(text []byte) {
		if err := os.WriteFile(kernel, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	edit(bytes.Replace(right, []byte("TVM_FFI_DLL_EXPORT_TYPED_FUNC"), []byte("EXPORT"), 1))
	o, failed, text := call(t.Context(), "check", "", map[string]any{"arch": "none"})
	if failed || o.Status != "not sound" || o.Fault == nil || o.Fault.Hint == "" ||
		o.Fault.File != "solution/cuda/kernel.cu" {
		t.Errorf("check of a wrong submission: got %v, %s", failed, text)
	}
	edit(right)
	o, failed, text = call(t.Context(), "check", "", map[string]any{"arch": "none"})
	if failed || o.Status != "sound" {
		t.Errorf("check of a right submission: got %v, %s", failed, text)
	}
	o, failed, text = call(t.Context(), "local", "all", map[string]any{"device": "emu", "limit": 2})
	if failed || o.Status != "passed" || o.Run == nil || o.Run.Passed != 2 {
		t.Fatalf("local: got %v, %s", failed, text)
	}
	run, err := runs.Read(filepath.Join(dir, runs.Dir, o.Run.ID))
	if err != nil || !slices.Contains(run.Run.Command, "local") || !slices.Contains(run.Run.Command, "--limit=2") {
		t.Errorf("run.json: got the command %q, %v, want the one that repeats the run", run.Run.Command, err)
	}
	at, ok := progress.Load("all")
	if !ok || !strings.HasSuffix(<-at.(chan string), " PASSED") {
		t.Error("local: no progress was reported")
	}
	if _, failed, text = call(t.Context(), "report", "", map[string]any{"runs": []string{"last"}}); failed ||
		!strings.Contains(text, o.Run.ID) {
		t.Errorf("report: got %v, %s", failed, text)
	}

	// Cancel after the first workload.
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan string, 100)
	progress.Store("some", first)
	go func() {
		<-first
		cancel()
	}()
	if _, failed, _ = call(ctx, "local", "some", map[string]any{"device": "emu"}); !failed {
		t.Error("a call that was cancelled has a result")
	}
	// The next run waits for the end of the cancelled one.
	o, failed, text = call(t.Context(), "compare", "", map[string]any{"a": ".", "b": ".", "device": "emu", "limit": 1})
	if failed || len(o.Compared) != 1 {
		t.Errorf("compare: got %v, %s", failed, text)
	}
	if _, failed, text = call(t.Context(), "compare", "", map[string]any{"a": ".", "define": []string{"TILE=1,2"}}); !failed ||
		!strings.Contains(text, "no source of") {
		t.Errorf("compare with define: got %v, %s", failed, text)
	}
	_, _, text = call(t.Context(), "runs", "", nil)
	var all []struct{ State string }
	if err := json.Unmarshal([]byte(text), &all); err != nil || len(all) != 4 || all[2].State == "done" ||
		all[2].State == "running" {
		t.Errorf("runs: got %s, want four, of which the third did not end", text)
	}

	// A cancelled call of remote ends its jobs: they could cost money.
	ctx, cancel = context.WithCancel(t.Context())
	far := make(chan string, 100)
	progress.Store("far", far)
	go func() {
		<-far
		cancel()
	}()
	if _, failed, _ = call(ctx, "remote", "far", map[string]any{"on": "loopback", "gpu": "none", "set": "contest",
		"yes": true}); !failed {
		t.Error("a call of remote that was cancelled has a result")
	}
	for range 600 {
		ls := exec.Command("fisub", "-C", dir, "--json", "remote", "ls")
		ls.Env = cmd.Env
		out, err := ls.Output()
		var jobs []struct {
			State  string
			Active int
			Passed int
		}
		if err != nil || json.Unmarshal(out, &jobs) != nil || len(jobs) != 1 {
			t.Fatalf("remote ls: got %s, %v", out, err)
		}
		text = string(out)
		if jobs[0].State == "cancelled" && jobs[0].Active == 0 && jobs[0].Passed < 54 {
			text = ""
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if text != "" {
		t.Errorf("remote ls after the call was cancelled: got %s, want a cancelled run without jobs", text)
	}

	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"..", "../x.json", outside, "link", "HEAD:../x", "--config=/x"} {
		if _, failed, text = call(t.Context(), "compare", "", map[string]any{"a": word, "b": "."}); !failed ||
			!strings.Contains(text, "outside the served project") {
			t.Errorf("compare %s: got %v, %s", word, failed, text)
		}
	}
	if _, failed, text = call(t.Context(), "local", "", map[string]any{"solution": "x.json"}); !failed {
		t.Errorf("an input that there is not: got %s", text)
	}
	if o, failed, text = call(t.Context(), "local", "", map[string]any{"set": "none"}); !failed || o.Status != "error" ||
		len(o.Errors) == 0 {
		t.Errorf("a set that there is not: got %v, %s", failed, text)
	}
}
