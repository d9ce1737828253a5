package kubernetes

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fisub/remote"
	"fisub/remote/remotetest"
)

func text(t *testing.T, o object) string {
	t.Helper()
	text, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// TestManifest compares manifests with testdata.
func TestManifest(t *testing.T) {
	for name, table := range map[string]map[string]any{
		"plain": {},
		"full": {"image": "registry.example/team/cuda:13", "cpu": 8.0, "memory": int64(32768), "queue": "main",
			"node_selector": []any{"cloud.google.com/gke-accelerator=nvidia-b200"}, "priority": "low",
			"tolerations": []any{"team=kernels:NoSchedule", "spot", "a=b"}, "service_account": "runner", "pull_secret": "reg",
			"user": int64(1000), "volume": "bundles", "pending": "2h", "workdir": "/work"},
	} {
		c, err := remotetest.Table[Config]("lab", table)
		if err != nil {
			t.Fatal(err)
		}
		job := &remote.Job{ID: "fisub-20261122-1", GPU: "b200", Limit: 30 * time.Minute,
			Labels: map[string]string{"run": "r1", "definition": "gdn"}}
		var nodes []string
		if name == "plain" {
			nodes = []string{"NVIDIA-B200"}
		}
		golden := filepath.Join("testdata", name+".json")
		got := text(t, manifest(&c, job, "0123456789abcdef0123", nodes))
		if os.Getenv("UPDATE") != "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || got != string(want) {
			t.Errorf("%s: got\n%s\nwant\n%s%v", name, got, want, err)
		}
	}
}

func TestObjectName(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"a", "fisub-20261122-1", "ends-", strings.Repeat("x", 52), strings.Repeat("x", 53),
		strings.Repeat("x", 63), "ends--"} {
		name := objectName(id)
		if len(name) > 52 || !objectForm.MatchString(name) || seen[name] {
			t.Errorf("%s: got %s", id, name)
		}
		seen[name] = true
	}
}

func TestIsGPU(t *testing.T) {
	for _, c := range []struct {
		label, kind string
		want        bool
	}{
		{"NVIDIA-B200", "b200", true}, {"NVIDIA-GB200", "b200", false}, {"NVIDIA-H100-80GB-HBM3", "h100", true},
		{"NVIDIA-H200-NVL", "h200", true}, {"NVIDIA-GeForce-RTX-4090", "rtx4090", true},
		{"NVIDIA-A100-SXM4-80GB", "a10", false},
		{"NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "h100", false}, {"NVIDIA-B200-SHARED", "b200", false}, {"", "b200", false},
	} {
		if got := isGPU(c.label, c.kind); got != c.want {
			t.Errorf("%s, %s: got %v", c.label, c.kind, got)
		}
	}
}

func TestSaid(t *testing.T) {
	for _, c := range []struct {
		name, log, want string
	}{
		{"all", "\x1eevents.jsonl 4\n{}\n\x1e\x1elog 0\n\x1eexit.json 2\n{}", "events.jsonl exit.json log"},
		{"nothing", "", ""},
		{"its beginning is gone", "}\n\x1elog 0\n", ""},
		{"cut off", "\x1eevents.jsonl 40\n{}", ""},
		{"no number", "\x1eevents.jsonl x\n{}", ""},
		{"below zero", "\x1eevents.jsonl -4\n{}", ""},
	} {
		got := parseLog([]byte(c.log))
		if names := strings.Join(slices.Sorted(maps.Keys(got)), " "); names != c.want {
			t.Errorf("%s: got %q", c.name, names)
		}
	}
	if got := parseLog([]byte("\x1eevents.jsonl 4\n{}\n\x1e\x1elog 0\n")); string(got["events.jsonl"]) != "{}\n\x1e" {
		t.Errorf("got %q", got)
	}
}
