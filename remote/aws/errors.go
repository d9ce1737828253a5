package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"fisub/remote"
)

// kinds maps prefixes of AWS's error codes, separated by "|", to the code and hint of a Denied.
var kinds = []struct{ codes, kind, hint string }{
	{"ExpiredToken|InvalidToken", "credentials", "renew the credentials, as with `aws sso login`"},
	{"RequestExpired", "credentials", "renew the credentials, or set the clock of this machine"},
	{"RequestTimeTooSkewed", "credentials", "set the clock of this machine: AWS rejects the signatures"},
	{"InvalidClientTokenId|InvalidAccessKeyId", "credentials", "the access key does not exist: see `aws configure list`"},
	{"UnrecognizedClient", "credentials", "AWS does not know these credentials: see `aws configure list`"},
	{"InvalidSignature|SignatureDoesNotMatch", "credentials", "the secret key does not belong to the access key"},
	{"MissingAuthenticationToken", "credentials", "set up credentials, as with `aws configure`"},
	{"OptInRequired", "credentials", "the account is not signed up for this service or region"},
	{"AccessDenied", "credentials", "missing permission: docs/remote/aws.md has the policy"},
	{"Forbidden", "credentials", "missing permission, or the bucket belongs to another account"},

	{"ServiceQuotaExceeded|LimitExceeded", "quota", "request a higher limit in Service Quotas"},

	{"NoSuchBucket", "no-such", "create the bucket with scripts/aws/template.yaml, or set bucket"},
	{"PermanentRedirect|MovedPermanently|AuthorizationHeaderMalformed|IllegalLocationConstraint", "no-such",
		"the bucket is in another region: set region"},
}

var absent = regexp.MustCompile(`(?i)not found|not exist|is not (active|enabled)|disabled|must be (VALID|ENABLED)`)

// denied rewords an error of the SDK. It returns a *remote.Denied if AWS or this machine's configuration refused, and
// keeps the error of a cancelled ctx. host may be empty.
func (p *Provider) denied(ctx context.Context, host string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
	if _, ok := errors.AsType[*remote.Denied](err); ok {
		return err
	}
	d := &remote.Denied{Provider: p.name, Host: host}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		code, words := api.ErrorCode(), strings.Join(strings.Fields(api.ErrorMessage()), " ")
		d.Text = code
		if words != "" && words != code {
			d.Text += ": " + words
		}
		for _, k := range kinds {
			if regexp.MustCompile(`^(` + k.codes + `)`).MatchString(code) {
				d.Code, d.Hint = k.kind, k.hint
				return d
			}
		}
		// Batch has one code for every invalid request; an S3 HEAD answer has no text.
		if code == "NotFound" || code == "ClientException" && absent.MatchString(words) {
			d.Code, d.Hint = "no-such", "check bucket, queue, job_definition and their region"
			return d
		}
		return &remote.ShortError{Text: d.Error(), Err: err}
	}
	var dial *net.OpError
	var name *net.DNSError
	d.Code, d.Hint = "unreachable", "check the network, the proxy and the region"
	switch { // drop the SDK's wrapping
	case errors.As(err, &dial):
		d.Text = dial.Error()
	case errors.As(err, &name):
		d.Text = name.Error()
	case host != "":
		return fmt.Errorf("%s: %s: %w", p.name, host, err)
	default:
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return d
}

// deny returns a refusal by AWS or this machine's configuration.
func (p *Provider) deny(code, hint, format string, args ...any) error {
	return &remote.Denied{Code: code, Provider: p.name, Text: fmt.Sprintf(format, args...), Hint: hint}
}

func code(err error) string {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return api.ErrorCode()
	}
	return ""
}

// passing reports whether another attempt may succeed. Errors that AWS blames on the request are permanent, except rate
// limits and request timeouts.
func passing(err error) bool {
	if code := remote.CodeOf(err); code != "" {
		return code == "unreachable"
	}
	var resp *smithyhttp.ResponseError
	if !errors.As(err, &resp) || resp.HTTPStatusCode()/100 != 4 {
		return true
	}
	c := code(err)
	slow := []string{"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "RequestTimeout",
		"BandwidthLimitExceeded"}
	return resp.HTTPStatusCode() == 429 || strings.Contains(c, "Throttl") || slices.Contains(slow, c)
}
