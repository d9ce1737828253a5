package aws

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/aws/mailbox"
)

// A bucket is an S3 bucket. Its keys under the prefix are:
//
//	store/<sha256>          files of bundles
//	jobs/<job>/handle.json  the job's handle; the job exists until this is deleted
//	jobs/<job>/job.json     the job
//	jobs/<job>/links.json   mailbox.Links
//	jobs/<job>/boot         the list of links that curl fetches first
//	jobs/<job>/stop         tells the host to end the job
//	jobs/<job>/out/         output of the mailbox
type bucket struct {
	s3   *s3.Client
	name string
}

// maxSkew is the largest error of this machine's clock. Links are valid from the time here, judged by the clock of S3.
const maxSkew = 5 * time.Minute

// maxFile is the largest size that S3 accepts in one request.
const maxFile = 5 << 30

func (p *Provider) stored(sum string) string { return p.config.Prefix + "store/" + sum }

func (b *bucket) put(ctx context.Context, key string, content []byte) error {
	_, err := b.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: &key, Body: bytes.NewReader(content)})
	return err
}

// get reads an object of at most limit bytes.
func (b *bucket) get(ctx context.Context, key string, limit int64) ([]byte, error) {
	o, err := b.s3.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key})
	if err != nil {
		return nil, err
	}
	defer o.Body.Close()
	data, err := io.ReadAll(io.LimitReader(o.Body, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("%s is longer than %d bytes", key, limit)
	}
	return data, err
}

func (b *bucket) clear(ctx context.Context, prefix string) error {
	pages := s3.NewListObjectsV2Paginator(b.s3, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		if len(page.Contents) == 0 {
			continue
		}
		ids := make([]types.ObjectIdentifier, len(page.Contents))
		for i, o := range page.Contents {
			ids[i].Key = o.Key
		}
		out, err := b.s3.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: &b.name,
			Delete: &types.Delete{Objects: ids, Quiet: aws.Bool(true)}})
		if err != nil {
			return err
		}
		if len(out.Errors) > 0 {
			e := out.Errors[0]
			return fmt.Errorf("deleting %s: %s: %s", aws.ToString(e.Key), aws.ToString(e.Code), aws.ToString(e.Message))
		}
	}
	return nil
}

func (b *bucket) handles(ctx context.Context, prefix string) ([]remote.Handle, error) {
	var all []remote.Handle
	pages := s3.NewListObjectsV2Paginator(b.s3, &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix,
		Delimiter: aws.String("/")})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, folder := range page.CommonPrefixes {
			job := path.Base(aws.ToString(folder.Prefix))
			raw, err := b.get(ctx, prefix+job+"/handle.json", 64<<10)
			if code(err) == "NoSuchKey" {
				continue // written by a host after its job was released
			}
			if err != nil {
				return nil, err
			}
			var h remote.Handle
			if json.Unmarshal(raw, &h) == nil && h.Provider == Kind && h.Job == job {
				all = append(all, h)
			}
		}
	}
	return all, nil
}

// send uploads missing files to the store. S3 rejects a file whose content does not match its hash. Only one Submit
// uploads at a time, so that jobs with the same bundle upload it once.
func (p *Provider) send(ctx context.Context, b *bucket, job *remote.Job, progress func(sent, total int64)) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	all := map[string]remote.File{}
	for _, f := range job.Files {
		if f.Size > maxFile {
			return fmt.Errorf("file %s is larger than 5 GiB, S3's limit", f.Name)
		}
		all[f.SHA256] = f
	}
	var mu sync.Mutex // guards lacking and total
	var lacking []remote.File
	var total int64
	g, sub := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, f := range all {
		g.Go(func() error {
			there, err := p.holds(sub, b, f)
			mu.Lock()
			defer mu.Unlock()
			if !there {
				lacking, total = append(lacking, f), total+f.Size
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// net/http may still read a request's body for a moment after the request has failed.
	count := &remote.Progress{Tell: progress}
	defer count.End()
	count.Begin(total)
	g, sub = errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, f := range lacking {
		g.Go(func() error { return p.sendFile(sub, b, f, count) })
	}
	return g.Wait()
}

// holds reports whether the store has a file with the right size and checksum.
func (p *Provider) holds(ctx context.Context, b *bucket, f remote.File) (bool, error) {
	o, err := b.s3.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &b.name, Key: aws.String(p.stored(f.SHA256)),
		ChecksumMode: types.ChecksumModeEnabled})
	if c := code(err); c == "NotFound" || c == "NoSuchKey" {
		return false, nil
	}
	return err == nil && aws.ToInt64(o.ContentLength) == f.Size && aws.ToString(o.ChecksumSHA256) == checksum(f), err
}

func (p *Provider) sendFile(ctx context.Context, b *bucket, f remote.File, count *remote.Progress) error {
	file, err := plain.Open(f.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if s, err := file.Stat(); err != nil || s.Size() != f.Size {
		return fmt.Errorf("%s: no longer %d bytes, as when the bundle was made", f.Path, f.Size)
	}
	// The checksum covers the content. Without the swap the SDK would read the file again to hash it for the signature.
	_, err = b.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(p.stored(f.SHA256)),
		Body: &counted{File: file, count: count}, ContentLength: &f.Size, ChecksumSHA256: aws.String(checksum(f))},
		s3.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware))
	switch code(err) {
	case "BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest", "XAmzContentSHA256Mismatch":
		return fmt.Errorf("file %s: %w: changed since the bundle was made", f.Name, agent.ErrHash)
	}
	return err
}

// checksum returns a file's hash in S3's encoding.
func checksum(f remote.File) string {
	sum, _ := hex.DecodeString(f.SHA256) // Job.Check has validated it
	return base64.StdEncoding.EncodeToString(sum)
}

// A counted is a file that counts the bytes read from it. A seek back subtracts the bytes that will be read again.
type counted struct {
	*os.File
	count *remote.Progress
	read  int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.File.Read(p)
	c.read += int64(n)
	c.count.Sent(int64(n))
	return n, err
}

func (c *counted) Seek(offset int64, whence int) (int64, error) {
	at, err := c.File.Seek(offset, whence)
	if err == nil && whence == io.SeekStart && at < c.read {
		c.count.Sent(at - c.read)
		c.read = at
	}
	return at, err
}

// post writes the job's folder and returns the boot link. All links are valid for life.
func (p *Provider) post(
	ctx context.Context, b *bucket, d *data, job *remote.Job, program string, life time.Duration,
) (boot string, err error) {
	raw, _ := json.Marshal(d.handle(job.Place)) // strings and times: cannot fail
	put, err := b.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(d.folder() + "handle.json"),
		Body: bytes.NewReader(raw)})
	if err != nil {
		return "", err
	}
	if skew, ok := awsmiddleware.GetAttemptSkew(put.ResultMetadata); ok && skew.Abs() > maxSkew {
		return "", p.deny("credentials", "set the clock of this machine",
			"the clock of this machine is wrong by %v: links to the bucket would be invalid", skew.Abs().Round(time.Second))
	}
	signer := s3.NewPresignClient(b.s3, s3.WithPresignExpires(life))
	link := func(key string) (url string) {
		r, wrong := signer.PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key})
		if wrong == nil {
			url = r.URL
		}
		if strings.ContainsAny(url, "\"'\\\n") {
			wrong = errors.New("a link with quotes in it")
		}
		err = errors.Join(err, wrong)
		return url
	}
	out := d.folder() + "out/"
	results := &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(out + "${filename}")}
	form, err := signer.PresignPostObject(ctx, results, func(o *s3.PresignPostOptions) {
		o.Expires = life
		o.Conditions = []any{[]any{"starts-with", "$key", out}, []any{"content-length-range", 0, mailbox.MaxPiece}}
	})
	if err != nil {
		return "", err
	}
	links := mailbox.Links{Files: map[string]string{}, Until: time.Now().Add(life).UTC().Truncate(time.Second),
		Stop: link(d.folder() + "stop"), Form: mailbox.Form{URL: form.URL, Fields: form.Values, Prefix: out}}
	for _, f := range job.Files {
		links.Files[f.SHA256] = link(p.stored(f.SHA256))
	}
	list := "create-dirs\n"
	for _, f := range []struct{ url, as string }{
		{links.Files[program], "program"},
		{link(d.folder() + "job.json"), "jobs/" + d.job + "/job.json"},
		{link(d.folder() + "links.json"), "links.json"},
	} {
		list += fmt.Sprintf("url = \"%s\"\noutput = \"%s\"\n", f.url, f.as)
	}
	boot = link(d.folder() + "boot")
	about, _ := json.Marshal(job) // strings and numbers: cannot fail
	all, _ := json.Marshal(links)
	for name, content := range map[string][]byte{"job.json": about, "links.json": all, "boot": []byte(list)} {
		if err == nil {
			err = b.put(ctx, d.folder()+name, content)
		}
	}
	return boot, err
}
