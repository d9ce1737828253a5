package retry_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"fisub/internal/retry"
)

func TestShort(t *testing.T) {
	other := errors.New("other")
	for _, tc := range []struct {
		name   string
		errors []error // of the calls; the last one is repeated
		calls  int
		want   error
	}{
		{"success", []error{nil}, 1, nil},
		{"another error", []error{other}, 1, other},
		{"no process for a moment", []error{&os.PathError{Op: "fork/exec", Err: syscall.EAGAIN}, syscall.EMFILE, nil}, 3, nil},
		{"another error later", []error{os.NewSyscallError("sendmsg", syscall.ETOOMANYREFS), other}, 2, other},
		{"no descriptor", []error{syscall.ENFILE}, 5, syscall.ENFILE},
	} {
		calls := 0
		err := retry.Short(func() error {
			calls++
			return tc.errors[min(calls, len(tc.errors))-1]
		})
		if !errors.Is(err, tc.want) || calls != tc.calls {
			t.Errorf("%s: got %v after %d calls, want %v after %d", tc.name, err, calls, tc.want, tc.calls)
		}
	}
}
