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
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"fisub/remote"
	"fisub/remote/agent"
	"fisub/remote/host"
)

// tries is how often Send begins at most where the connection is lost each time: what arrived before is not sent again.
// While the host cannot be reached that does not count.
const tries = 4

// Send brings to the store what it lacks of the files, and gives what the host tells of itself. progress, which may be
// nil, is told how many bytes of total were sent, before they are compressed. One call at a time sends, so that the
// next one finds it there. It gets over a connection that is lost, and over a host that is away for no longer than
// Away.
func (f *Folder) Send(ctx context.Context, files []remote.File, progress func(sent, total int64)) (*Facts, error) {
	return f.sendAll(ctx, files, progress, nil)
}

// sendAll is Send that asks fits, which may be nil, before something is sent.
func (f *Folder) sendAll(ctx context.Context, files []remote.File, progress func(sent, total int64),
	fits func(*Facts) error) (*Facts, error) {
	select {
	case <-f.sending:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { f.sending <- struct{}{} }()
	var since time.Time // the host, which has answered before, cannot be reached
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

// room and inodes are what must be free on the host beside the files themselves.
const (
	room   = 32 << 20
	inodes = 40
)

// A file on its way lies in the store under this name and its hash, as it is or compressed. Clients that send the same
// file write the same bytes to the same places of it.
const (
	partName = ".part-"
	packName = ".gzip-"
)

// stored is look, and reads hashes, a line each, and gives the sizes of those that the store has, and of files on their
// way. The former stay for a job that is begun soon; what no job has used for a month goes, and what came only in part
// and has not grown for a day. In the folder of somebody else nothing goes.
const stored = look + `
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
	facts, err := f.look(ctx, stored, "make", strings.NewReader(names.String()), func(line string) {
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
		have[file.SHA256] = file.Size // two names may have the same content
	}
	count.Begin(total)
	if facts.Free > 0 && facts.Free < total+room && len(lacking) > 0 {
		return facts, full(facts, fmt.Sprintf("the bundle and a job take %d MB", (total+room)>>20))
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
		if now, lookErr := f.Look(ctx); lookErr == nil && now.Free > 0 && now.Free < room {
			err = full(now, err.Error())
		} else if lookErr == nil && now.Inodes >= 0 && now.Inodes < inodes {
			err = outOfInodes(now)
		}
	}
	return facts, err
}

func outOfInodes(facts *Facts) error {
	return &remote.Denied{Code: "disk", Text: fmt.Sprintf("%d inodes free in %s: a job takes %d", facts.Inodes, facts.Root,
		inodes), Hint: "remove files there (df -i shows the inodes), or set workdir to another disk"}
}

func full(facts *Facts, text string) error {
	return &remote.Denied{Code: "disk", Text: fmt.Sprintf("%d MB free in %s: %s", facts.Free>>20, facts.Root, text),
		Hint: makeRoom}
}

// block is the unit in which an upload that was cut off goes on.
const block = 64 << 10

// receive writes its input to $1 from block $3 on, and makes file $2 of what is there then, of $4 bytes with hash $5
// and mode $6, through the command $7. What another client has brought meanwhile is as good, and what one that was
// killed has unpacked goes. The file is on the disk before it has its name.
var receive = fmt.Sprintf(`umask 077; dd of="$1" bs=%d seek="$3" conv=notrunc status=none || exit
size() { stat -c %%s -- "$1" 2>/dev/null || echo 0; }
tidy() { for left in "$1" "$1".*; do [ ! -e "$left" ] || rm -f -- "$left"; done; }
brought() { [ "$out" = "$1" ] || rm -f -- "$out"; [ "$(size "$2")" = "$4" ] && tidy "$1" && exit 0; }
out=$1; if [ -n "$7" ]; then out=$1.$$; $7 <"$1" >"$out" || { s=$?; brought "$@"; exit $s; }; fi
if [ "$(sha256sum <"$out")" != "$5  -" ]; then short=$(($(size "$out") < $4)); brought "$@"
  [ $short = 0 ] || { echo it ends early >&2; exit 1; }
  rm -f -- "$1"; echo what came is damaged >&2; exit 1; fi
chmod "$6" "$out" && sync "$out" && mv -f -- "$out" "$2" && tidy "$1" || { s=$?; brought "$@"; exit $s; }`, block)

// put sends a file, and goes on where an upload of it was cut off.
func (f *Folder) put(ctx context.Context, facts *Facts, file remote.File, have map[string]int64,
	count *remote.Progress) error {
	src, err := os.Open(file.Path)
	if err != nil {
		return &remote.LocalError{Err: err}
	}
	defer src.Close()
	part, unpack := partName+file.SHA256, ""
	switch packs := f.Pack && facts.gzip && shrinks(src, file.Size); {
	case packs:
		part, unpack = packName+file.SHA256, "gzip -dc"
	case file.Exec:
		unpack = "cat" // the kernel runs no file that another client still has open for writing
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
		case err == io.EOF: // what was there is longer than the file
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
		count.Sent(-in.read) // what an earlier upload left is of no use
	}
}

// shrinks tells whether a file is worth compressing, by a piece from its middle.
func shrinks(r io.ReaderAt, size int64) bool {
	piece := make([]byte, block)
	n, _ := r.ReadAt(piece, max(0, size/2-block/2))
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	_, _ = w.Write(piece[:n])
	_ = w.Close()
	return out.Len() < n-n/8
}

// A packer reads r compressed: the same bytes each time.
type packer struct {
	r    io.Reader
	w    *gzip.Writer
	out  bytes.Buffer
	done error
}

func newPacker(r io.Reader) *packer {
	p := &packer{r: r}
	p.w, _ = gzip.NewWriterLevel(&p.out, gzip.BestSpeed) // in time for 100 MB/s
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

// Checked reads a file of a bundle from R. It ends with an error that wraps agent.ErrHash where that is not its
// content.
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

// A source is a file of this machine that is sent. It keeps its error, a LocalError.
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
