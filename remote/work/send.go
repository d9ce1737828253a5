package work

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fisub/internal/plain"
	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
)

// tries is the maximum number of attempts of a Send that loses the connection each time. Attempts that cannot reach the
// host do not count.
const tries = 4

// Send uploads the files that are missing from the store and returns facts about the host. progress, which may be nil,
// gets the uncompressed bytes sent so far, out of total. fits, which may be nil, can reject the host before anything is
// sent. Concurrent calls run one after the other, so that each finds the files of the one before. Send survives lost
// connections, without resending data, and an unreachable host for up to Away.
func (f *Folder) Send(ctx context.Context, files []remote.File, progress func(sent, total int64),
	fits func(*Facts) error) (*Facts, error) {
	select {
	case <-f.sending:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { f.sending <- struct{}{} }()
	var since time.Time // start of the time in which a host that has answered before is unreachable
	answered := false
	for try, wait := 1, 250*time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		facts, err := f.send(ctx, files, progress, fits)
		answered = answered || facts != nil
		switch {
		case errors.As(err, new(*host.LostError)) && try < tries:
			since = time.Time{}
			try++
		case remote.CodeOf(err) == "unreachable" && answered:
			if since.IsZero() {
				since = time.Now()
			}
			if time.Since(since) > f.Away {
				return nil, err
			}
		default:
			return facts, err
		}
		if err := remote.Sleep(ctx, wait); err != nil {
			return nil, err
		}
	}
}

// room (in bytes) and inodes must be free besides the files themselves.
const (
	room   = 32 << 20
	inodes = 40
)

// A partial upload is stored under partName, or packName if compressed, and its hash. Clients that send the same file
// write the same bytes to the same offsets.
const (
	partName = ".part-"
	packName = ".gzip-"
)

// stored runs probe, then reads hashes, one per line, and prints the sizes of these files and of their partial uploads.
// It touches the files for the job that follows. In the user's own folder it deletes files unused for a month, and
// partial uploads that have not grown for a day.
const stored = probe + `
names=$(cat); cd store || exit; printf '%s\n' "$names" | xargs touch -c -- 2>/dev/null
[ ! -O . ] ||
  find . -maxdepth 1 -type f \( -mtime +` + agent.KeepDays + ` -o -name '.*' -mtime +0 \) -exec rm -f -- {} +
echo; { printf '%s\n' "$names"; printf '` + partName + `%s\n' $names; printf '` + packName + `%s\n' $names; } |
xargs stat -c '%s %n' -- 2>/dev/null; true`

func (f *Folder) send(ctx context.Context, files []remote.File, progress func(sent, total int64),
	fits func(*Facts) error) (*Facts, error) {
	var names strings.Builder
	for _, file := range files {
		fmt.Fprintln(&names, file.SHA256)
	}
	have := map[string]int64{}
	facts, err := f.probe(ctx, stored, "make", strings.NewReader(names.String()), func(line string) {
		size, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseInt(size, 10, 64); err == nil {
			have[name] = n
		}
	})
	if err == nil && f.Check != nil {
		err = f.Check(facts)
	}
	if err != nil {
		return nil, err
	}
	count := &remote.Progress{Tell: progress}
	var lacking []remote.File
	var total int64
	for _, file := range files {
		if size, ok := have[file.SHA256]; !ok || size != file.Size {
			lacking = append(lacking, file)
			total += file.Size
		}
		have[file.SHA256] = file.Size // the same content may occur under two names
	}
	count.Begin(total)
	if facts.Free > 0 && facts.Free < total+room && len(lacking) > 0 {
		return facts, full(facts, fmt.Sprintf("the bundle and a job need %d MB", (total+room)>>20))
	}
	if facts.Inodes >= 0 && facts.Inodes < inodes {
		return facts, outOfInodes(facts)
	}
	if fits != nil && len(lacking) > 0 {
		if err := fits(facts); err != nil {
			return facts, err
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, file := range lacking {
		group.Go(func() error { return f.put(gctx, facts, file, have, count) })
	}
	err = group.Wait()
	if err != nil && ctx.Err() == nil && !errors.As(err, new(*host.LostError)) &&
		!errors.As(err, new(*remote.LocalError)) {
		if now, factsErr := f.Prepare(ctx); factsErr == nil && now.Free > 0 && now.Free < room {
			err = full(now, err.Error())
		} else if factsErr == nil && now.Inodes >= 0 && now.Inodes < inodes {
			err = outOfInodes(now)
		}
	}
	return facts, err
}

func outOfInodes(facts *Facts) error {
	return &remote.Denied{Code: "disk",
		Text: fmt.Sprintf("%d inodes free in %s: a job needs %d", facts.Inodes, facts.Root, inodes),
		Hint: "remove files (df -i shows the inodes), or set workdir to another disk"}
}

func full(facts *Facts, text string) error {
	return &remote.Denied{Code: "disk", Text: fmt.Sprintf("%d MB free in %s: %s", facts.Free>>20, facts.Root, text),
		Hint: makeRoom}
}

// block is the granularity at which an upload resumes.
const block = 64 << 10

// receive writes its input to the partial upload $1 from block $3, unpacks that with the command $7 (if not ""), checks
// its size $4 and hash $5, sets the mode $6 and renames it to $2. If another client has uploaded the file in the
// meantime, receive uses that. It deletes half-unpacked files of killed clients. The file is synced to disk before it
// is renamed.
var receive = fmt.Sprintf(`umask 077; dd of="$1" bs=%d seek="$3" conv=notrunc status=none || exit
size() { stat -c %%s -- "$1" 2>/dev/null || echo 0; }
tidy() { for left in "$1" "$1".*; do [ ! -e "$left" ] || rm -f -- "$left"; done; }
brought() { [ "$out" = "$1" ] || rm -f -- "$out"; [ "$(size "$2")" = "$4" ] && tidy "$1" && exit 0; }
out=$1; if [ -n "$7" ]; then out=$1.$$; $7 <"$1" >"$out" || { s=$?; brought "$@"; exit $s; }; fi
if [ "$(sha256sum <"$out")" != "$5  -" ]; then short=$(($(size "$out") < $4)); brought "$@"
  [ $short = 0 ] || { echo it ends early >&2; exit 1; }
  rm -f -- "$1"; echo what came is damaged >&2; exit 1; fi
chmod "$6" "$out" && sync "$out" && mv -f -- "$out" "$2" && tidy "$1" || { s=$?; brought "$@"; exit $s; }`, block)

// put uploads a file, resuming an interrupted upload.
func (f *Folder) put(ctx context.Context, facts *Facts, file remote.File, have map[string]int64,
	count *remote.Progress) error {
	src, err := plain.Open(file.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer src.Close()
	part, unpack := partName+file.SHA256, ""
	switch packs := f.Pack && facts.gzip && shrinks(src, file.Size); {
	case packs:
		part, unpack = packName+file.SHA256, "gzip -dc"
	case file.Exec:
		unpack = "cat" // a copy: the kernel refuses to run a file that another client has open for writing
	}
	store := agent.Store(facts.Root)
	for from := have[part] / block; ; from = 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			return &remote.LocalError{Err: err}
		}
		in := &source{Checked: Checked{R: src, File: file}, count: count}
		var sent io.Reader = in
		if unpack == "gzip -dc" {
			sent = newPacker(in)
		}
		_, err := io.CopyN(io.Discard, sent, from*block)
		if err == nil {
			err = shell(ctx, f.Host, receive, []string{path.Join(store, part), agent.Stored(facts.Root, file.SHA256),
				strconv.FormatInt(from, 10), strconv.FormatInt(file.Size, 10), file.SHA256,
				strconv.FormatUint(uint64(file.Mode()), 8), unpack}, sent, nil)
		}
		switch {
		case in.err != nil:
			err = in.err
		case err == io.EOF: // the partial upload is longer than the file
			err = &host.ExitError{Status: 1}
		}
		if !errors.As(err, new(*host.ExitError)) && in.err == nil {
			return err
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
		_ = f.Host.Run(clean, []string{"rm", "-f", "--", path.Join(store, part)}, nil, nil)
		cancel()
		if in.err != nil || from == 0 {
			return err
		}
		count.Sent(-in.read) // the earlier partial upload is useless
	}
}

// shrinks reports whether compressing a file is worthwhile, judged by a block from its middle.
func shrinks(r io.ReaderAt, size int64) bool {
	piece := make([]byte, block)
	n, _ := r.ReadAt(piece, max(0, size/2-block/2))
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = w.Write(piece[:n])
	_ = w.Close()
	return out.Len() < n-n/8
}

// A packer compresses r; its output is always the same.
type packer struct {
	r    io.Reader
	w    *gzip.Writer
	out  bytes.Buffer
	done error
}

func newPacker(r io.Reader) *packer {
	p := &packer{r: r}
	p.w, _ = gzip.NewWriterLevel(&p.out, gzip.BestSpeed) // fast enough for 100 MB/s
	return p
}

func (p *packer) Read(b []byte) (int, error) {
	for p.out.Len() == 0 && p.done == nil {
		if _, p.done = io.CopyN(p.w, p.r, 1<<20); p.done == io.EOF {
			_ = p.w.Close()
		}
	}
	if p.out.Len() == 0 {
		return 0, p.done
	}
	return p.out.Read(b)
}

// Checked reads a file of a bundle from R. If the content does not match the hash, the last Read returns an error that
// wraps agent.ErrHash.
type Checked struct {
	R    io.Reader
	File remote.File
	hash hash.Hash
}

func (c *Checked) Read(p []byte) (int, error) {
	if c.hash == nil {
		c.hash = sha256.New()
	}
	n, err := c.R.Read(p)
	c.hash.Write(p[:n])
	if err == io.EOF {
		if got := hex.EncodeToString(c.hash.Sum(nil)); got != c.File.SHA256 {
			return n, fmt.Errorf("%w: file %s: got %s, want %s", agent.ErrHash, c.File.Name, got, c.File.SHA256)
		}
	}
	return n, err
}

// A source reads a local file to send and keeps its error, a *LocalError.
type source struct {
	Checked
	count *remote.Progress
	read  int64
	err   error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.Checked.Read(p)
	s.read += int64(n)
	s.count.Sent(int64(n))
	if err != io.EOF {
		s.err = remote.Local(err)
		err = s.err
	}
	return n, err
}
