package loopback_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/loopback"
	"fisub/remote/remotetest"
)

func TestMain(m *testing.M) { remotetest.Main(m) }

func open(name string, values map[string]any) (*loopback.Provider, error) {
	c, err := remotetest.Table[loopback.Config](name, values)
	if err != nil {
		return nil, err
	}
	return loopback.New(name, c)
}

func TestProvider(t *testing.T) {
	work := t.TempDir()
	remotetest.Run(t, remotetest.Setup{
		New: func(t *testing.T) remote.Provider {
			p, err := open("here", map[string]any{"workdir": work, "slots": int64(2)})
			if err != nil {
				t.Fatal(err)
			}
			return p
		},
		KillHost: func(t *testing.T, h remote.Handle) {
			data, err := os.ReadFile(filepath.Join(agent.JobDir(work, h.Job), agent.StateName))
			if err != nil {
				t.Fatal(err)
			}
			var s agent.Identity
			if err := json.Unmarshal(data, &s); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Sweeps:   true,
		Spoil:    func(t *testing.T, hash string) { remotetest.Spoil(t, work, hash) },
		HalfFree: func(t *testing.T, h remote.Handle) { remotetest.HalfFree(t, work, h.Job) },
		GPUs: func(t *testing.T) (remote.Provider, string) {
			work := t.TempDir()
			p, err := open("here", map[string]any{"workdir": work, "gpu": "b200", "gpus": []any{int64(0), int64(1)}})
			if err != nil {
				t.Fatal(err)
			}
			return p, work
		},
	})
}

func TestConfig(t *testing.T) {
	_, err := open("x", map[string]any{"slots": int64(0), "gpus": []any{int64(1), int64(1)}, "workdir": "a", "host": "b"})
	want := `unknown key remote.x.host
remote.x.slots: want 1 to 256, got 0
remote.x.slots: cannot be combined with gpus
remote.x.gpus: duplicate GPU 1
remote.x.workdir: "a" is not absolute`
	if err == nil || err.Error() != want {
		t.Errorf("got:\n%v\nwant:\n%s", err, want)
	}
	p, err := open("x", map[string]any{"gpus": []any{int64(1), int64(3)}, "workdir": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Places(5); len(got) != 2 || got[1] != (remote.Place{Host: "localhost", GPU: 3}) {
		t.Errorf("places: got %v", got)
	}
	if err := p.Release(t.Context(), remote.Handle{Provider: "loopback", Job: "../x",
		Data: json.RawMessage(`{"work":"/"}`)}); err == nil ||
		!strings.Contains(err.Error(), "not from loopback") {
		t.Errorf("a bad handle: got %v", err)
	}
}
