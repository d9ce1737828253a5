package aws

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/aws/protocol/ec2query"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// ec2Version is the API whose parameters and answers are spoken.
const ec2Version = "2016-11-15"

// mostAnswer is the size in bytes above which an answer is refused. A page has up to 1000 instances of some kB each.
const mostAnswer = 32 << 20

// An ec2API asks EC2 of one region, over the SDK's parts that sign, send and try again. The SDK's own client of EC2
// would be 38 MB of the program. It may be used concurrently.
type ec2API struct {
	region   string
	endpoint string
	http     aws.HTTPClient
	creds    aws.CredentialsProvider
	signer   *v4.Signer
	retryer  aws.Retryer
	timing   awsmiddleware.RecordResponseTiming
	skew     atomic.Int64 // what EC2's clock is ahead of this one, in nanoseconds
}

func newEC2API(cfg aws.Config) *ec2API {
	e := &ec2API{region: cfg.Region, endpoint: ec2Endpoint(cfg), http: cfg.HTTPClient, creds: cfg.Credentials, signer: v4.NewSigner(),
		timing: awsmiddleware.RecordResponseTiming{DisableClockSkewCorrection: cfg.DisableClockSkewCorrection}}
	switch {
	case cfg.Retryer != nil:
		e.retryer = cfg.Retryer()
	case cfg.RetryMode == aws.RetryModeAdaptive:
		e.retryer = retry.NewAdaptiveMode()
	default:
		e.retryer = retry.NewStandard()
	}
	if cfg.RetryMaxAttempts != 0 {
		e.retryer = retry.AddWithMaxAttempts(e.retryer, cfg.RetryMaxAttempts)
	}
	return e
}

// ec2Endpoint gives the URL that the environment or the profile set for EC2, or for all services, and else AWS's own.
func ec2Endpoint(cfg aws.Config) string {
	_, all := os.LookupEnv("AWS_ENDPOINT_URL")
	_, own := os.LookupEnv("AWS_ENDPOINT_URL_EC2")
	ignored, _, _ := awsconfig.GetIgnoreConfiguredEndpoints(context.Background(), cfg.ConfigSources)
	// The environment's URL for all services comes before the profile's for this one.
	if !ignored && (own || !all) {
		for _, source := range cfg.ConfigSources {
			s, ok := source.(interface {
				GetServiceBaseEndpoint(ctx context.Context, sdkID string) (string, bool, error)
			})
			if !ok {
				continue
			}
			if endpoint, found, err := s.GetServiceBaseEndpoint(context.Background(), "EC2"); found && err == nil {
				return endpoint
			}
		}
	}
	if cfg.BaseEndpoint != nil {
		return *cfg.BaseEndpoint
	}
	suffix := ""
	if strings.HasPrefix(cfg.Region, "cn-") {
		suffix = ".cn"
	}
	return "https://ec2." + cfg.Region + ".amazonaws.com" + suffix
}

// regionName keeps what a handle names as its region from becoming another host.
var regionName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// call does one action with the parameters of form, as often as the retryer has it tried, and reads its answer into answer,
// which may be nil. An error of EC2's is a *smithy.GenericAPIError, in a *smithyhttp.ResponseError.
func (e *ec2API) call(ctx context.Context, action string, form url.Values, answer any) error {
	raw, err := e.send(ctx, action, form)
	if err == nil {
		if err = readAnswer(raw, action, answer); err != nil {
			err = &smithy.DeserializationError{Err: err}
		}
	}
	if err != nil {
		return &smithy.OperationError{ServiceID: "EC2", OperationName: action, Err: err}
	}
	return nil
}

func (e *ec2API) send(ctx context.Context, action string, form url.Values) (raw []byte, err error) {
	if !regionName.MatchString(e.region) {
		return nil, fmt.Errorf("%.80q is no region", e.region)
	}
	to, err := url.Parse(e.endpoint)
	if err != nil || to.Host == "" || to.Scheme != "https" && to.Scheme != "http" {
		return nil, fmt.Errorf("the endpoint of EC2 is no URL: %.80q", e.endpoint)
	}
	all := url.Values{"Action": {action}, "Version": {ec2Version}}
	maps.Copy(all, form)
	body := all.Encode()
	sum := sha256.Sum256([]byte(body))

	write := func(ctx context.Context, in middleware.SerializeInput, next middleware.SerializeHandler) (middleware.SerializeOutput, middleware.Metadata, error) {
		req := in.Request.(*smithyhttp.Request)
		req.Method, req.URL = http.MethodPost, to
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		var err error
		if in.Request, err = req.SetStream(strings.NewReader(body)); err != nil {
			return middleware.SerializeOutput{}, middleware.Metadata{}, err
		}
		return next.HandleSerialize(ctx, in)
	}
	sign := func(ctx context.Context, in middleware.FinalizeInput, next middleware.FinalizeHandler) (middleware.FinalizeOutput, middleware.Metadata, error) {
		creds, err := e.creds.Retrieve(ctx)
		if err == nil {
			now := time.Now().Add(time.Duration(e.skew.Load()))
			err = e.signer.SignHTTP(ctx, creds, in.Request.(*smithyhttp.Request).Request, hex.EncodeToString(sum[:]), "ec2", e.region, now)
		}
		if err != nil {
			return middleware.FinalizeOutput{}, middleware.Metadata{}, fmt.Errorf("signing: %w", err)
		}
		out, meta, err := next.HandleFinalize(ctx, in)
		if skew, ok := awsmiddleware.GetAttemptSkew(meta); ok {
			e.skew.Store(int64(skew))
		}
		return out, meta, err
	}
	read := func(ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler) (middleware.DeserializeOutput, middleware.Metadata, error) {
		out, meta, err := next.HandleDeserialize(ctx, in)
		if err == nil {
			raw, err = readResponse(out.RawResponse.(*smithyhttp.Response), &meta)
		}
		return out, meta, err
	}
	stack := middleware.NewStack(action, smithyhttp.NewStackRequest)
	err = errors.Join(
		stack.Serialize.Add(middleware.SerializeMiddlewareFunc("OperationSerializer", write), middleware.After),
		stack.Build.Add(awsmiddleware.NewRequestUserAgent(), middleware.After),
		stack.Finalize.Add(retry.NewAttemptMiddleware(e.retryer, smithyhttp.RequestCloner, func(a *retry.Attempt) { a.ClientSkew = &e.skew }), middleware.After),
		stack.Finalize.Add(middleware.FinalizeMiddlewareFunc("Signing", sign), middleware.After),
		stack.Deserialize.Add(&awshttp.ResponseErrorWrapper{}, middleware.After),
		stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("OperationDeserializer", read), middleware.After),
		stack.Deserialize.Add(&e.timing, middleware.After),
	)
	if err != nil {
		return nil, err
	}
	_, _, err = middleware.DecorateHandler(smithyhttp.NewClientHandlerWithOptions(e.http), stack).Handle(ctx, nil)
	return raw, err
}

// readResponse gives the body of a response, or the error that it tells of.
func readResponse(resp *smithyhttp.Response, meta *middleware.Metadata) ([]byte, error) {
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer+1))
	if err != nil {
		return nil, &smithy.DeserializationError{Err: fmt.Errorf("reading the answer: %w", err)}
	}
	if len(raw) > mostAnswer {
		return nil, &smithy.DeserializationError{Err: fmt.Errorf("the answer has more than %d bytes", mostAnswer)}
	}
	if resp.StatusCode/100 == 2 {
		return raw, nil
	}
	said, err := ec2query.GetErrorResponseComponents(bytes.NewReader(raw))
	if err != nil {
		return nil, &smithy.DeserializationError{Err: err}
	}
	awsmiddleware.SetRequestIDMetadata(meta, said.RequestID)
	no := &smithy.GenericAPIError{Code: said.Code, Message: said.Message}
	if no.Code == "" {
		no.Code = "UnknownError"
	}
	return nil, no
}

// readAnswer reads the XML of a response that tells of no error. What answer has no place for is left out.
func readAnswer(raw []byte, action string, answer any) error {
	if answer == nil {
		answer = &struct{}{}
	}
	for d := xml.NewDecoder(bytes.NewReader(raw)); ; {
		token, err := d.Token()
		if err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		if start, ok := token.(xml.StartElement); ok {
			if start.Name.Local != action+"Response" {
				return fmt.Errorf("the answer is %.80q, not %sResponse", start.Name.Local, action)
			}
			if err := d.DecodeElement(answer, &start); err != nil {
				return fmt.Errorf("reading the answer: %w", err)
			}
			return nil
		}
	}
}

// number adds a list to a form as EC2 wants it: key.1, key.2 and so on.
func number(form url.Values, key string, values ...string) {
	for i, v := range values {
		form.Set(fmt.Sprintf("%s.%d", key, i+1), v)
	}
}

// An instanceTypes is the answer to DescribeInstanceTypes.
type instanceTypes struct {
	GPUs []struct {
		Count        int    `xml:"count"`
		Manufacturer string `xml:"manufacturer"`
		Name         string `xml:"name"`
	} `xml:"instanceTypeSet>item>gpuInfo>gpus>item"`
}

// A reservations is the answer to DescribeCapacityReservations.
type reservations struct {
	All []struct {
		InstanceType string     `xml:"instanceType"`
		State        string     `xml:"state"`
		Type         string     `xml:"reservationType"` // "default" or capacityBlock
		Start        *time.Time `xml:"startDate"`       // nil where it has begun, or is not known
		End          *time.Time `xml:"endDate"`         // nil where it has none
	} `xml:"capacityReservationSet>item"`
}

// An instance is one that RunInstances or DescribeInstances tells of. What EC2 does not say is "".
type instance struct {
	ID      string `xml:"instanceId"`
	State   string `xml:"instanceState>name"`
	Reason  string `xml:"stateReason>code"`
	Message string `xml:"stateReason>message"`
	Tags    []struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	} `xml:"tagSet>item"`
}

// A started is the answer to RunInstances.
type started struct {
	Instances []instance `xml:"instancesSet>item"`
}

// An instancePage is one answer to DescribeInstances. Next is what asks for the next one, "" on the last.
type instancePage struct {
	Instances []instance `xml:"reservationSet>item>instancesSet>item"`
	Next      string     `xml:"nextToken"`
}

// A console is the answer to GetConsoleOutput.
type console struct {
	Output string `xml:"output"` // in base64
}
