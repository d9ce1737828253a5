package loopback_test

import (
	"testing"

	"fisub/remote"
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
		KillHost: func(t *testing.T, h remote.Handle) { remotetest.KillAgent(t, work, h.Job) },
		Sweeps:   true,
		Work:     work,
		Renames:  true,
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
	remotetest.CheckFaults(t, err, `unknown key remote.x.host
remote.x.slots: want 1 to 256, got 0
remote.x.slots: cannot be combined with gpus
remote.x.gpus: duplicate GPU 1
remote.x.workdir: "a" is not absolute`)
	p, err := open("x", map[string]any{"gpus": []any{int64(1), int64(3)}, "workdir": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Places(5); len(got) != 2 || got[1] != (remote.Place{Host: "localhost", GPU: 3}) {
		t.Errorf("places: got %v", got)
	}
	remotetest.CheckForeign(t, p, remote.NewHandle(loopback.Kind, "j", remote.Place{Host: "localhost"},
		map[string]string{"work": "/w"}))
}
