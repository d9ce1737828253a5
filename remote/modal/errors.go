package modal

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	sdk "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fisub/remote"
)

// token matches Modal's token ids and secrets. A server may quote one.
var token = regexp.MustCompile(`\b(ak|as|wk|ws)-[A-Za-z0-9_-]+`)

func redact(s string) string { return token.ReplaceAllString(s, "$1-...") }

// words returns Modal's own message, without the prefixes of gRPC and the SDK.
func words(err error) string {
	text := strings.TrimPrefix(err.Error(), "failed to get auth token: ")
	var st interface{ GRPCStatus() *status.Status }
	if errors.As(err, &st) && st.GRPCStatus().Message() != "" {
		text = st.GRPCStatus().Message()
	}
	return redact(strings.TrimSpace(kinds.ReplaceAllString(text, "")))
}

// kinds matches the SDK's names of errors.
var kinds = regexp.MustCompile(`^((Remote|Invalid|NotFound|Conflict|Execution|ResourceExhausted|Timeout)Error: )+`)

// deny returns a refusal by Modal or one of its limits.
func (p *Provider) deny(code, hint, format string, args ...any) error {
	return &remote.Denied{Code: code, Provider: p.name, Text: fmt.Sprintf(format, args...), Hint: hint}
}

// code returns the code of the gRPC status in err, even if the SDK has wrapped it.
func code(err error) codes.Code {
	if st, ok := status.FromError(err); ok {
		return st.Code()
	}
	return codes.Unknown
}

// gone reports whether err means that Modal does not know the object or no longer runs it.
func gone(err error) bool {
	return err != nil && (errors.As(err, new(sdk.NotFoundError)) || errors.As(err, new(sdk.ConflictError)) ||
		code(err) == codes.NotFound)
}

// fail rewords an error of the SDK. It returns a *remote.Denied if Modal refuses or cannot be reached.
func (p *Provider) fail(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %s: %w", p.name, doing, ctx.Err())
	}
	if _, ok := errors.AsType[*remote.Denied](err); ok {
		return err
	}
	text := words(err)
	deny := func(code, hint string) error { return p.deny(code, hint, "%s: %s", doing, text) }
	const login = "run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
	switch c := code(err); {
	case c == codes.Unauthenticated, strings.HasPrefix(text, "missing credentials"):
		return deny("credentials", login)
	case c == codes.PermissionDenied:
		return deny("credentials", "check the token's workspace and permissions at modal.com/settings")
	case c == codes.ResourceExhausted, c == codes.FailedPrecondition, errors.As(err, new(sdk.ResourceExhaustedError)):
		return deny("quota", "modal.com/settings shows the workspace's limits and its budget")
	case c == codes.InvalidArgument, c == codes.NotFound, errors.As(err, new(sdk.InvalidError)), gone(err):
		return deny("no-such", fmt.Sprintf("check gpu, image, volume, regions and environment in [remote.%s]", p.name))
	case c == codes.Unavailable, c == codes.DeadlineExceeded:
		return deny("unreachable", "check the network, and status.modal.com")
	}
	return &remote.ShortError{Text: fmt.Sprintf("%s: %s: %s", p.name, doing, text), Err: err} // without the token
}
