package ssh

import (
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/host"
)

// A Config is a table [remote.NAME] of this kind.
type Config struct {
	remote.Common
	Hosts     []string
	GPUs      []int
	Workdir   string
	Away      time.Duration
	SSHConfig string // "" for the user's own
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	return []config.Key{
		{Name: "hosts", To: &c.Hosts, Required: true, Example: `["gpu01"]`,
			Help: `SSH hosts: "gpu01", "me@gpu01", "me@gpu01:2222", "me@[2001:db8::1]:2222"`},
		{Name: "gpus", To: &c.GPUs, Default: []int{0}, Help: "GPU ordinals on each host; each is a place"},
		{Name: "workdir", To: &c.Workdir, Default: ".cache/fisub/remote",
			Help: "folder on the host for the bundle's files and the jobs: absolute, or below the home folder"},
		{Name: "away", To: &c.Away, Default: 5 * time.Minute,
			Help: "after this time, free places also run the workloads of an unreachable host"},
		{Name: "ssh_config", To: &c.SSHConfig, Absent: "~/.ssh/config", Help: "absolute path of an ssh config"},
	}
}

// maxKnown limits the number of hosts that Known returns.
const maxKnown = 5

// Known returns the first hosts of ~/.ssh/config, without patterns. It does not follow Include.
func Known() (hosts []string) {
	account, err := user.Current() // ssh ignores HOME
	if err != nil {
		return nil
	}
	text, err := plain.ReadFile(filepath.Join(account.HomeDir, ".ssh", "config"), 1<<20)
	if err != nil {
		return nil
	}
	return known(string(text))
}

func known(config string) (hosts []string) {
	for line := range strings.Lines(config) {
		words := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n=\"", r) })
		if len(words) < 2 || !strings.EqualFold(words[0], "Host") {
			continue
		}
		for _, word := range words[1:] {
			if len(hosts) < maxKnown && host.SSHName.MatchString(word) && !slices.Contains(hosts, word) {
				hosts = append(hosts, word)
			}
		}
	}
	return hosts
}

var workForm = regexp.MustCompile(`^[A-Za-z0-9_./@+=,-]+$`)

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	if t.Has("hosts") && len(c.Hosts) == 0 {
		t.Fault("hosts", `write hosts = ["gpu01"]`, "empty list")
	}
	for i, h := range c.Hosts {
		if !host.SSHName.MatchString(h) {
			t.Fault("hosts", `such as "gpu01", "me@gpu01:2222" or "me@[2001:db8::1]:2222"`, "%.80q is not an SSH host", h)
		} else if slices.Contains(c.Hosts[:i], h) {
			t.Fault("hosts", "", "duplicate %s", h)
		}
	}
	if len(c.GPUs) == 0 {
		t.Fault("gpus", "write gpus = [0]", "empty list")
	}
	remote.CheckGPUs(t, c.GPUs)
	dir := path.Clean(c.Workdir)
	if !workForm.MatchString(c.Workdir) || dir == "." || dir == "/" || strings.HasPrefix(dir, "../") {
		t.Fault("workdir", "", "%.200q is not a path of letters, digits and ./_@+=,-", c.Workdir)
	}
	if c.Away <= 0 {
		t.Fault("away", "", "must be above zero")
	}
	if c.SSHConfig != "" && !filepath.IsAbs(c.SSHConfig) {
		t.Fault("ssh_config", "", "%.200q is not absolute", c.SSHConfig)
	}
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c), nil }
