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

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/aws/mailbox"
)

// What lies in the bucket under the prefix:
//
//	store/<sha256>          files of bundles
//	jobs/<job>/handle.json  the job's handle; a job is held as long as this is there
//	jobs/<job>/job.json     the job
//	jobs/<job>/links.json   mailbox.Links
//	jobs/<job>/boot         the list of links that curl fetches first
//	jobs/<job>/stop         the order to stop
//	jobs/<job>/out/         what the mailbox leaves
type bucket struct {
	s3   *s3.Client
	name string
}

// maxSkew is by how much the clock here may be wrong: links are valid from the time here on, at the time of S3.
const maxSkew = 5 * time.Minute

// maxFile is what S3 takes in one piece.
const maxFile = 5 << 30

// stored is the key of a file of a bundle.
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

// clear deletes all that lies under the prefix.
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

// handles reads the handles of the jobs under the prefix.
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
				continue // what a host left after its job was released
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

// send brings the files that the store lacks into it. S3 refuses a file whose content is not what its hash says. One
// Submit sends at a time, so that jobs with the same bundle do not all send it.
func (p *Provider) send(ctx context.Context, b *bucket, job *remote.Job, progress func(sent, total int64)) error {
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var lacking []remote.File
	var total int64
	g, sub := errgroup.WithContext(ctx)
	g.SetLimit(8)
	known, seen := make([]bool, len(job.Files)), map[string]bool{}
	for i, f := range job.Files {
		if f.Size > maxFile {
			return fmt.Errorf("file %s is larger than 5 GiB, which S3 does not take", f.Name)
		}
		if seen[f.SHA256] {
			known[i] = true
			continue
		}
		seen[f.SHA256] = true
		g.Go(func() error {
			o, err := b.s3.HeadObject(sub, &s3.HeadObjectInput{Bucket: &b.name, Key: aws.String(p.stored(f.SHA256)),
				ChecksumMode: types.ChecksumModeEnabled})
			if c := code(err); c == "NotFound" || c == "NoSuchKey" {
				return nil
			}
			known[i] = err == nil && aws.ToInt64(o.ContentLength) == f.Size && aws.ToString(o.ChecksumSHA256) == checksum(f)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, f := range job.Files {
		if !known[i] {
			lacking, total = append(lacking, f), total+f.Size
		}
	}
	// The bodies of requests are read by goroutines of net/http, for a moment also when a request has failed.
	var mu sync.Mutex
	var sent int64
	over := progress == nil
	tell := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if sent += n; !over {
			progress(sent, total)
		}
	}
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
	}()
	tell(0)
	g, sub = errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, f := range lacking {
		g.Go(func() error { return p.sendFile(sub, b, f, tell) })
	}
	return g.Wait()
}

func (p *Provider) sendFile(ctx context.Context, b *bucket, f remote.File, tell func(int64)) error {
	file, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	if s, err := file.Stat(); err != nil || s.Size() != f.Size {
		return fmt.Errorf("%s: not %d bytes as when the bundle was made", f.Path, f.Size)
	}
	// The checksum signs the content: without the swap the file would be read once more to hash it for the signature.
	_, err = b.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(p.stored(f.SHA256)),
		Body: &counted{file: file, tell: tell}, ContentLength: &f.Size, ChecksumSHA256: aws.String(checksum(f))},
		s3.WithAPIOptions(v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware))
	switch code(err) {
	case "BadDigest", "XAmzContentChecksumMismatch", "InvalidDigest", "XAmzContentSHA256Mismatch":
		return fmt.Errorf("file %s: %w: it is not as it was when the bundle was made", f.Name, agent.ErrHash)
	}
	return err
}

// checksum gives a file's hash as S3 has it.
func checksum(f remote.File) string {
	sum, _ := hex.DecodeString(f.SHA256) // Job.Check has seen it
	return base64.StdEncoding.EncodeToString(sum)
}

// counted is a file that tells what was read of it; what is read again after a seek is taken back first.
type counted struct {
	file *os.File
	tell func(int64)
	told int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.file.Read(p)
	c.told += int64(n)
	c.tell(int64(n))
	return n, err
}

func (c *counted) Seek(offset int64, whence int) (int64, error) {
	at, err := c.file.Seek(offset, whence)
	if err == nil && whence == io.SeekStart && at < c.told {
		c.tell(at - c.told)
		c.told = at
	}
	return at, err
}

// post writes the job's folder, and gives the program's hash and the link with which the host begins. All links work
// for life.
func (p *Provider) post(
	ctx context.Context, b *bucket, d *data, job *remote.Job, h remote.Handle, life time.Duration,
) (program, boot string, err error) {
	raw, err := json.Marshal(h)
	if err != nil {
		return "", "", err
	}
	put, err := b.s3.PutObject(ctx, &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(d.folder() + "handle.json"),
		Body: bytes.NewReader(raw)})
	if err != nil {
		return "", "", err
	}
	if skew, ok := awsmiddleware.GetAttemptSkew(put.ResultMetadata); ok && skew.Abs() > maxSkew {
		return "", "", p.deny("credentials", "set the clock of this machine",
			"the clock of this machine is wrong by %v: links to the bucket would not be valid", skew.Abs().Round(time.Second))
	}
	signer := s3.NewPresignClient(b.s3, s3.WithPresignExpires(life))
	link := func(key string) (string, error) {
		r, err := signer.PresignGetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &key})
		if err != nil {
			return "", err
		}
		if strings.ContainsAny(r.URL, "\"'\\\n") {
			return "", errors.New("a link with quotes in it")
		}
		return r.URL, nil
	}
	links := mailbox.Links{Files: map[string]string{}, Until: time.Now().Add(life).UTC().Truncate(time.Second)}
	for _, f := range job.Files {
		if links.Files[f.SHA256], err = link(p.stored(f.SHA256)); err != nil {
			return "", "", err
		}
	}
	file, err := job.Program()
	if err != nil {
		return "", "", err
	}
	program = file.SHA256
	if links.Stop, err = link(d.folder() + "stop"); err != nil {
		return "", "", err
	}
	out := d.folder() + "out/"
	results := &s3.PutObjectInput{Bucket: &b.name, Key: aws.String(out + "${filename}")}
	form, err := signer.PresignPostObject(ctx, results, func(o *s3.PresignPostOptions) {
		o.Expires = life
		o.Conditions = []any{[]any{"starts-with", "$key", out}, []any{"content-length-range", 0, mailbox.MaxPiece}}
	})
	if err != nil {
		return "", "", err
	}
	links.Form = mailbox.Form{URL: form.URL, Fields: form.Values, Prefix: out}

	objects := map[string]any{"job.json": job, "links.json": &links}
	for name, v := range objects {
		content, err := json.Marshal(v)
		if err == nil {
			err = b.put(ctx, d.folder()+name, content)
		}
		if err != nil {
			return "", "", err
		}
	}
	list := "create-dirs\n"
	for _, f := range []struct{ key, as string }{
		{p.stored(program), "program"},
		{d.folder() + "job.json", "jobs/" + d.job + "/job.json"},
		{d.folder() + "links.json", "links.json"},
	} {
		url, err := link(f.key)
		if err != nil {
			return "", "", err
		}
		list += fmt.Sprintf("url = \"%s\"\noutput = \"%s\"\n", url, f.as)
	}
	if err := b.put(ctx, d.folder()+"boot", []byte(list)); err != nil {
		return "", "", err
	}
	boot, err = link(d.folder() + "boot")
	return program, boot, err
}

// A reader follows the event stream of one job. What the host leaves is not to be trusted.
type reader struct {
	bucket  *bucket
	folder  string // ends with "out/"
	pos     int64  // next byte to write
	after   string // the last key that has nothing more to give
	started bool
}

// A writing error is one of the watcher.
type writing struct{ err error }

func (e *writing) Error() string { return e.err.Error() }

// read writes what is new. exit is set when the job has left its exit, and so all of the stream is written.
func (r *reader) read(ctx context.Context, w io.Writer) (exit *remote.Exit, err error) {
	in := &s3.ListObjectsV2Input{Bucket: &r.bucket.name, Prefix: &r.folder}
	if r.after != "" {
		in.StartAfter = &r.after
	}
	pages := s3.NewListObjectsV2Paginator(r.bucket.s3, in)
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, o := range page.Contents {
			name := strings.TrimPrefix(aws.ToString(o.Key), r.folder)
			switch name {
			case mailbox.Started:
				r.started = true
			case mailbox.Exit:
				r.started = true
				if exit, err = r.exit(ctx); err != nil {
					return nil, err
				}
			}
			offset, ok := mailbox.EventOffset(name)
			if !ok {
				continue
			}
			end := offset + aws.ToInt64(o.Size)
			if end > r.pos {
				if err := r.piece(ctx, w, *o.Key, offset); err != nil {
					return nil, err
				}
			}
			r.after = *o.Key
		}
	}
	return exit, nil
}

// piece writes the piece of the stream that begins at offset, as far as it is new.
func (r *reader) piece(ctx context.Context, w io.Writer, key string, offset int64) error {
	if offset > r.pos {
		return &writing{fmt.Errorf("bytes %d to %d of the event stream are missing in %s", r.pos, offset-1, r.folder)}
	}
	content, err := r.bucket.get(ctx, key, mailbox.MaxPiece)
	if err != nil {
		return err
	}
	fresh := content[min(r.pos-offset, int64(len(content))):]
	if _, err := w.Write(fresh); err != nil {
		return &writing{err}
	}
	r.pos += int64(len(fresh))
	return nil
}

func (r *reader) exit(ctx context.Context) (*remote.Exit, error) {
	raw, err := r.bucket.get(ctx, r.folder+mailbox.Exit, 64<<10)
	if err != nil {
		return nil, err
	}
	e := agent.ParseExit(raw)
	return &e, nil
}
