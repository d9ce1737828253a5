package slurm

import (
	"context"
	"errors"
	"strings"

	"fisub/remote/ssh"
)

// there is a login host behind ssh.
type there struct{ *ssh.Login }

func (l there) Run(ctx context.Context, argv []string, stdin string) (string, error) {
	var stdout capped
	err := l.Login.Run(ctx, argv, strings.NewReader(stdin), &stdout)
	var failed *ssh.Status
	if errors.As(err, &failed) {
		err = &commandError{name: program(argv), status: failed.Code, stderr: failed.Text}
	}
	return string(stdout.kept), err
}
