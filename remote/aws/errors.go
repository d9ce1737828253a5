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

// kinds says for AWS's error codes, or their beginnings, what a Denied is about.
var kinds = []struct {
	code  string
	kind  string
	hint  string
	exact bool
}{
	{"ExpiredToken", "credentials", "renew the credentials, as with `aws sso login`", false},
	{"RequestExpired", "credentials", "renew the credentials, or set the clock of this machine", true},
	{"RequestTimeTooSkewed", "credentials", "set the clock of this machine: AWS refuses other signatures", true},
	{"InvalidClientTokenId", "credentials", "the access key does not exist: see `aws configure list`", true},
	{"InvalidAccessKeyId", "credentials", "the access key does not exist: see `aws configure list`", true},
	{"UnrecognizedClient", "credentials", "AWS does not know these credentials: see `aws configure list`", false},
	{"InvalidSignature", "credentials", "the secret key does not belong to the access key", false},
	{"SignatureDoesNotMatch", "credentials", "the secret key does not belong to the access key", true},
	{"InvalidToken", "credentials", "renew the credentials, as with `aws sso login`", false},
	{"MissingAuthenticationToken", "credentials", "set up credentials, as with `aws configure`", false},
	{"OptInRequired", "credentials", "the account is not signed up for this service or region", true},
	{"AccessDenied", "credentials", "the credentials lack a permission: docs/remote/aws.md names the policy", false},
	{"Forbidden", "credentials", "the credentials lack a permission, or the bucket is another account's", true},

	{"ServiceQuotaExceeded", "quota", "ask for more in Service Quotas", false},
	{"LimitExceeded", "quota", "ask for more in Service Quotas", false},

	{"NoSuchBucket", "no-such", "create the bucket with scripts/aws/template.yaml, or set bucket", true},
	{"PermanentRedirect", "no-such", "the bucket is in another region: set region", true},
	{"MovedPermanently", "no-such", "the bucket is in another region: set region", true},
	{"AuthorizationHeaderMalformed", "no-such", "the bucket is in another region: set region", true},
	{"IllegalLocationConstraint", "no-such", "the bucket is in another region: set region", false},
}

var absent = regexp.MustCompile(`(?i)not found|not exist|is not (active|enabled)|disabled|must be (VALID|ENABLED)`)

// denied gives an error of the SDK in AWS's words: a *remote.Denied where AWS, or this machine's set-up, is what says
// no. host may be empty. The end of ctx stays what it is.
func (p *Provider) denied(ctx context.Context, host string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", p.name, ctx.Err())
	}
	var no *remote.Denied
	if errors.As(err, &no) {
		return err
	}
	d := &remote.Denied{Provider: p.name, Host: host}
	var api smithy.APIError
	if errors.As(err, &api) {
		code, words := api.ErrorCode(), strings.Join(strings.Fields(api.ErrorMessage()), " ")
		d.Text = code
		if words != "" && words != code {
			d.Text += ": " + words
		}
		for _, k := range kinds {
			if code == k.code || !k.exact && strings.HasPrefix(code, k.code) {
				d.Code, d.Hint = k.kind, k.hint
				return d
			}
		}
		// Batch has one code for all that is wrong with a request, HEAD of S3 has no text.
		if code == "NotFound" || code == "ClientException" && absent.MatchString(words) {
			d.Code, d.Hint = "no-such", "check bucket, queue and job_definition, and that region is theirs"
			return d
		}
		said := fmt.Errorf("%s: %s", p.place(host), d.Text)
		if finally(err) {
			return final{said}
		}
		return said
	}
	var dial *net.OpError
	var name *net.DNSError
	if errors.As(err, &dial) || errors.As(err, &name) {
		d.Code, d.Text, d.Hint = "unreachable", dialText(err), "check the network, the proxy and the region"
		return d
	}
	return fmt.Errorf("%s: %w", p.place(host), err)
}

// deny is what AWS, or this machine's set-up, says no to.
func (p *Provider) deny(code, hint, format string, args ...any) error {
	return &remote.Denied{Code: code, Provider: p.name, Text: fmt.Sprintf(format, args...), Hint: hint}
}

func (p *Provider) place(host string) string {
	if host == "" {
		return p.name
	}
	return p.name + ": " + host
}

// dialText leaves out what the SDK wraps around the cause.
func dialText(err error) string {
	var dial *net.OpError
	if errors.As(err, &dial) {
		return dial.Error()
	}
	var name *net.DNSError
	errors.As(err, &name)
	return name.Error()
}

// code gives AWS's error code, or "".
func code(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

// A final error is one that AWS would give again.
type final struct{ error }

func (e final) Unwrap() error { return e.error }

// passing tells whether the error may be gone with the next attempt: what is waited for goes on meanwhile.
func passing(err error) bool {
	var no *remote.Denied
	if errors.As(err, &no) {
		return no.Code == "unreachable"
	}
	return !errors.As(err, &final{})
}

// finally tells whether AWS found fault with a request, other than that there were too many.
func finally(err error) bool {
	var resp *smithyhttp.ResponseError
	if !errors.As(err, &resp) || resp.HTTPStatusCode()/100 != 4 {
		return false
	}
	c := code(err)
	slow := []string{"RequestLimitExceeded", "TooManyRequestsException", "SlowDown", "RequestTimeout",
		"BandwidthLimitExceeded"}
	return resp.HTTPStatusCode() != 429 && !strings.Contains(c, "Throttl") && !slices.Contains(slow, c)
}
