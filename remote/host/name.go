package host

import (
	"net/netip"
	"strconv"
	"strings"

	"fisub/internal/plain"
)

// SSHName matches names of SSH hosts: a host name, an alias of the ssh config or an IP address, with a user before it
// and a port after it if needed. An IPv6 address with a port is in brackets: "me@[2001:db8::1]:2222". No name can be
// mistaken for an option.
var SSHName sshNames

type sshNames struct{}

// MatchString reports whether s is the name of an SSH host.
func (sshNames) MatchString(s string) bool {
	_, _, ok := splitName(s)
	return ok
}

var (
	nameForm = plain.NewForm(`^[A-Za-z0-9_.@:\[\]-]{1,255}$`)
	partForm = plain.NewForm(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
	userForm = plain.NewForm(`^[A-Za-z0-9_][A-Za-z0-9_.@-]*$`)
)

// splitName returns the parts of an SSH host's name for ssh: a destination, without brackets, and a port or "".
func splitName(name string) (destination, port string, ok bool) {
	at := strings.LastIndexByte(name, '@')
	host := name[at+1:]
	if !nameForm.MatchString(name) || at >= 0 && !userForm.MatchString(name[:at]) {
		return "", "", false
	}
	six := strings.Count(host, ":") > 1
	if inside, found := strings.CutPrefix(host, "["); found {
		host, port, found = strings.Cut(inside, "]")
		if six = found; port != "" {
			var colon bool
			if port, colon = strings.CutPrefix(port, ":"); !colon || port == "" {
				return "", "", false
			}
		}
	} else if !six {
		var colon bool
		if host, port, colon = strings.Cut(host, ":"); colon && port == "" {
			return "", "", false
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) {
		return "", "", false
	}
	valid := partForm.MatchString(host)
	if six {
		address, err := netip.ParseAddr(host)
		valid = err == nil && address.Is6()
	}
	return name[:at+1] + host, port, valid
}

// words returns the arguments of an ssh that a person runs: "-p 2222 me@gpu01".
func (s *SSH) words() string {
	options := ""
	if s.Config != "" {
		options = "-F " + plain.Word(s.Config) + " "
	}
	destination, port, ok := splitName(s.Name)
	switch {
	case !ok:
		return options + plain.Word(s.Name)
	case port != "":
		options += "-p " + port + " "
	}
	return options + destination
}

// known returns the host's name in known_hosts.
func (s *SSH) known() string {
	destination, port, _ := splitName(s.Name)
	host := destination[strings.LastIndexByte(destination, '@')+1:]
	if port == "" || port == "22" {
		return host
	}
	return "[" + host + "]:" + port
}
