package host

import (
	"slices"
	"strings"
	"testing"
)

func TestSSHName(t *testing.T) {
	for _, tc := range []struct{ name, args string }{ // args are the last ones of ssh; "" if the name is invalid
		{"gpu01", "-- gpu01"},
		{"me@gpu01", "-- me@gpu01"},
		{"me@gpu01:2222", "-p 2222 -- me@gpu01"},
		{"me@corp.example@gpu01", "-- me@corp.example@gpu01"},
		{"10.0.0.1:22", "-p 22 -- 10.0.0.1"},
		{"root@[::1]:24771", "-p 24771 -- root@::1"},
		{"[2001:db8::1]", "-- 2001:db8::1"},
		{"2001:db8::1", "-- 2001:db8::1"},
		{"::1", "-- ::1"},
		{"root@fe80::1", "-- root@fe80::1"},
		{"-oProxyCommand=x", ""}, {"me@-x", ""}, {"-x@gpu01", ""}, {"", ""}, {"@gpu01", ""}, {"me@", ""},
		{"gpu01:", ""}, {"gpu01:0", ""}, {"gpu01:65536", ""}, {"gpu01:ssh", ""}, {"gpu01:22:23", ""}, {":22", ""},
		{"[::1", ""}, {"[::1]22", ""}, {"[::1]:", ""}, {"[gpu01]:22", ""}, {"::1]", ""}, {"gpu[01]", ""}, {"fe80::1%eth0", ""},
		{"a b", ""}, {strings.Repeat("a", 256), ""},
	} {
		if got := SSHName.MatchString(tc.name); got != (tc.args != "") {
			t.Errorf("%q: got %v", tc.name, got)
		}
		if tc.args == "" {
			continue
		}
		all := (&SSH{Name: tc.name}).args("socket", "no", "true")
		at := slices.Index(all, "ControlPath=socket") + 1
		if got := strings.Join(all[at:len(all)-1], " "); got != tc.args {
			t.Errorf("%q: got %s, want %s", tc.name, got, tc.args)
		}
	}
}

// The commands in hints can be run.
func TestHintCommand(t *testing.T) {
	for _, tc := range []struct{ name, config, said, want string }{
		{"root@[::1]:24771", "", "Permission denied (publickey)", "ssh -p 24771 root@::1 must work"},
		{"root@127.0.0.1:22722", "", "Host key verification failed.", "run ssh -p 22722 root@127.0.0.1 once"},
		{"me@gpu01", "", "Permission denied (publickey)", "ssh me@gpu01 must work"},
		{"me@gpu01:22", "/my conf", "Permission denied (publickey)", "ssh -F '/my conf' -p 22 me@gpu01 must work"},
		{"gpu01:2222", "", "HOST IDENTIFICATION HAS CHANGED", "ssh-keygen -R '[gpu01]:2222', then ssh -p 2222 gpu01"},
		{"me@::1", "", "HOST IDENTIFICATION HAS CHANGED", "ssh-keygen -R ::1, then ssh me@::1"},
	} {
		err := (&SSH{Name: tc.name, Config: tc.config}).explain(tc.said)
		if denied, ok := err.(interface{ Advice() string }); !ok || !strings.Contains(denied.Advice(), tc.want) {
			t.Errorf("%s: got %v, want hint %q", tc.name, err, tc.want)
		}
	}
}
