package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A request that the kernel refuses to send is not the solution's fault.
func TestUnsent(t *testing.T) {
	c, err := start(t, "double", 0)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	err = c.Load(t.Context(), &Tensors{Inputs: []Value{{Tensor: &FileTensor{DType: "int32", Shape: []int{1}, Bytes: 4,
		File: closed}}}})
	if we, ok := errors.AsType[*Error](err); !ok || we.Kind != Machine || !we.Unsent {
		t.Errorf("got %#v, want an error of the machine", err)
	}
}

// inFlight is the program of TestInFlight: it exceeds its user's limit of descriptors in flight and sends a request.
func inFlight(freed bool) {
	ctx := context.Background()
	limit := syscall.Rlimit{Cur: 128, Max: 128}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err := errors.Join(err, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	c, err := Start(ctx, Command{Args: []string{"/proc/self/exe"}, Env: []string{"FISUB_TEST_WORKER=1"}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer c.Close()
	rights := unix.UnixRights(make([]int, 250)...)
	for err == nil {
		err = unix.Sendmsg(ends[0], []byte("x"), rights, nil, 0)
	}
	if freed {
		time.AfterFunc(150*time.Millisecond, func() { unix.Close(ends[0]); unix.Close(ends[1]) })
	}
	f, _ := os.Open("/dev/null")
	err = c.Load(ctx, &Tensors{Inputs: []Value{{Tensor: &FileTensor{DType: "int32", Shape: []int{0}, File: f}}}})
	if we, ok := errors.AsType[*Error](err); ok {
		err = fmt.Errorf("%s error: %w", we.Kind, err)
	}
	fmt.Println(err)
}

// The limit of descriptors in flight counts all processes of a user. A request is sent again until others release
// theirs.
func TestInFlight(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("becomes another user, which only root may do")
	}
	for how, want := range map[string]string{"kept": "machine error: sending a request: ", "freed": "worker: request out of order"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "FISUB_TEST_IN_FLIGHT="+how)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61234, Gid: 61234}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: got %v, %s, want %s", how, err, out, want)
		}
	}
}

// A worker starts once other processes of the user release descriptors.
func TestStartsLater(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 3, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	free := func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) }
	defer free()
	time.AfterFunc(100*time.Millisecond, free)
	c, err := Start(t.Context(), Command{Args: []string{self}, Env: []string{"FISUB_TEST_WORKER=1"}})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}
