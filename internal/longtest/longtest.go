// Package longtest decides which tests run. It keeps tests that are slow or start daemons or compilers out of make
// check, which runs go test -short, and the longest out of make test. It skips tests whose requirements are missing on
// this machine.
package longtest

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Skip skips the test under -short for the reason what, such as "starts sshd".
func Skip(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of make check: " + what)
	}
}

// All reports whether all tests run, as in make ci, which sets FISUB_TEST_ALL.
func All() bool { return os.Getenv("FISUB_TEST_ALL") != "" }

// CI skips the test outside of make ci for the reason what, such as "starts Slurm".
func CI(t testing.TB, what string) {
	t.Helper()
	if !All() {
		t.Skipf("left out of make test: %s; to run it: make ci", what)
	}
}

// Rounds returns the number of rounds of a test that repeats itself at random times: few outside of make ci.
func Rounds(all int) int {
	if All() {
		return all
	}
	return min(all, 3)
}

// installers maps the names allowed in FISUB_TEST_REQUIRE to the commands that install them, if any.
var installers = map[string]string{
	"aws":        "scripts/aws/tools",
	"axe":        "scripts/setup --ci",
	"chromium":   "scripts/setup --ci",
	"cuda":       "",
	"kubernetes": "scripts/kubernetes/tools",
	"python":     "scripts/python/tools",
	"sandbox":    "",
	"shells":     "scripts/setup --ci",
	"slurm":      "scripts/setup --ci",
	"ssh":        "scripts/setup --test",
	"toolchain":  "dist/fisub toolchain install",
}

// Required reports whether FISUB_TEST_REQUIRE, a comma-separated list, contains name.
func Required(name string) bool {
	return slices.Contains(strings.Split(os.Getenv("FISUB_TEST_REQUIRE"), ","), name)
}

// Missing skips the test for the given reason. name is the name of the missing requirement in FISUB_TEST_REQUIRE: if
// that lists name, the test fails instead. The message includes the command that installs it.
func Missing(t testing.TB, name string, reason any) {
	t.Helper()
	command, ok := installers[name]
	if !ok {
		t.Fatalf("longtest: unknown requirement %q", name)
	}
	if Required(name) {
		t.Fatalf("FISUB_TEST_REQUIRE lists %s: %v", name, reason)
	}
	if command != "" {
		t.Skipf("%v; to run it: %s", reason, command)
	}
	t.Skip(reason)
}
