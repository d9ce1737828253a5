// Package longtest keeps the tests that start daemons or compilers, or take long, out of make check, which runs go test
// -short.
package longtest

import "testing"

// Skip skips the test under -short; what says what it takes, such as "starts sshd".
func Skip(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of make check: " + what)
	}
}
