package remote_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"fisub/internal/config"
	"fisub/remote"
	"fisub/remote/ssh"
)

const submission = `
[solution]
name = "s"
definition = "d"
author = "a"
[build]
language = "cuda"
entry_point = "kernel.cu::kernel"
`

// Decode reports all faults of a table at once, with positions and hints.
func TestDecodeFaults(t *testing.T) {
	cfg, err := config.Parse("config.toml", []byte(`[remote.lab]
provider = "ssh"
host = ["a"]
away = 5
limit = "-1s"
gpus = [0, "1"]
slots = 1
workdir = { a = 1 }
`+submission))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range config.Faults(remote.Decode(cfg.Remote["lab"], new(ssh.Config))) {
		fmt.Fprintln(&got, f)
		if f.Hint != "" {
			fmt.Fprintln(&got, "hint:", f.Hint)
		}
	}
	want := `config.toml:1:1: missing key remote.lab.hosts
hint: add hosts = ["gpu01"]
config.toml:3:1: unknown key remote.lab.host
hint: did you mean "hosts"?
config.toml:4:8: remote.lab.away must be a time such as "30m", not an integer
config.toml:5:9: remote.lab.limit: must be above zero
config.toml:6:8: remote.lab.gpus must be a list of whole numbers, not one with a string (item 2)
config.toml:7:1: unknown key remote.lab.slots
hint: known here: provider, gpu, limit, hosts, gpus, workdir, away, ssh_config
config.toml:8:11: remote.lab.workdir must be a string, not a table
`
	if got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
}

// Missing keys, including common ones, get their defaults; an inline table works too.
func TestDecode(t *testing.T) {
	cfg, err := config.Parse("config.toml", []byte(`remote = { ssh = { hosts = ["a"], limit = "1h30m" } }`+
		submission))
	if err != nil {
		t.Fatal(err)
	}
	var got ssh.Config
	if err := remote.Decode(cfg.Remote["ssh"], &got); err != nil {
		t.Fatal(err)
	}
	want := ssh.Config{Common: remote.Common{Provider: "ssh", Limit: 90 * time.Minute}, Hosts: []string{"a"},
		GPUs:    []int{0},
		Workdir: ".cache/fisub/remote", Away: 5 * time.Minute}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	table := config.NewTable("remote.lab", map[string]any{"provider": "ssh", "host": []any{"a"}})
	if err := remote.Decode(table, &got); err == nil ||
		err.Error() != "missing key remote.lab.hosts\nunknown key remote.lab.host" {
		t.Errorf("a table of no file: got %v", err)
	}
}
