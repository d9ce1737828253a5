// Package modaltest is a fake Modal for tests, in one process on loopback. It implements the calls of the control plane
// and the command router that remote/modal uses. Commands in a sandbox run as processes of this machine in their own
// folder. Volumes are folders too. As with Modal, each sandbox has its own copy: `sync` and the end of the sandbox
// write its changes back, and a reload fetches other sandboxes' changes. GPUs, images and networks are only names.
package modaltest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Root is the root of a command's files in a sandbox. In a command's arguments it is replaced with a folder of this
// machine, and back in its output.
const Root = "/fisub/"

// A Server is one Modal, with one workspace and one user.
type Server struct {
	pb.UnimplementedModalClientServer
	dir    string
	addr   string
	id     string // id of the token
	secret string
	grpc   *grpc.Server

	mu       sync.Mutex
	full     bool // no machine with a GPU is free
	build    []string
	broken   string // error of building an image; "" for none
	fails    map[string]*failure
	stall    chan struct{}
	calls    []string
	boxes    []*box
	execs    map[string]*execution
	volumes  map[string]string // folder by id
	versions map[string]pb.VolumeFsVersion
	apps     []string
}

type failure struct {
	err  error
	left int
	late bool // the call is executed, and only its answer is lost
}

// Start starts a server with its files in dir. It accepts the token with that id and secret.
func Start(dir, id, secret string) (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, addr: l.Addr().String(), id: id, secret: secret, fails: map[string]*failure{},
		execs:   map[string]*execution{},
		volumes: map[string]string{}, versions: map[string]pb.VolumeFsVersion{}, stall: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(100<<20),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, i *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any,
			error) {
			late, err := s.admit(ctx, i.FullMethod)
			if err != nil && !late {
				return nil, err
			}
			answer, failed := next(ctx, req)
			if err != nil {
				return nil, err
			}
			return answer, failed
		}),
		grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, i *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if _, err := s.admit(ss.Context(), i.FullMethod); err != nil {
				return err
			}
			return next(srv, ss)
		}))
	pb.RegisterModalClientServer(s.grpc, s)
	pb.RegisterTaskCommandRouterServer(s.grpc, &router{s: s})
	go func() { _ = s.grpc.Serve(l) }()
	return s, nil
}

// Stop ends all sandboxes and the server.
func (s *Server) Stop() {
	for _, b := range s.all() {
		b.end(pb.GenericResult_GENERIC_STATUS_TERMINATED, "", 0, false)
	}
	s.grpc.Stop()
}

// URL returns the value for MODAL_SERVER_URL.
func (s *Server) URL() string { return "http://" + s.addr }

// Fail makes the next n calls of a method fail; a negative n means all calls.
func (s *Server) Fail(method string, code codes.Code, text string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[method] = &failure{err: status.Error(code, text), left: n}
}

// Lose executes the next n calls of a method, but loses their answers.
func (s *Server) Lose(method string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fails[method] = &failure{err: status.Error(codes.Unavailable, "connection reset by peer"), left: n, late: true}
}

// Full sets whether all machines with a GPU are busy. Queued sandboxes start when that ends.
func (s *Server) Full(full bool) {
	s.mu.Lock()
	s.full = full
	s.mu.Unlock()
	for _, b := range s.all() {
		b.start()
	}
}

// Builds sets the output of building an image, and its error, if any.
func (s *Server) Builds(log []string, broken string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.build, s.broken = log, broken
}

// Drop breaks the open streams.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.stall)
	s.stall = make(chan struct{})
}

// Kill ends a sandbox with a status and Modal's words for it. Changes since its last sync are lost.
func (s *Server) Kill(id string, status pb.GenericResult_GenericStatus, text string) error {
	b, err := s.box(id)
	if err != nil {
		return err
	}
	b.end(status, text, 0, false)
	return nil
}

// A Sandbox holds a test's view of a sandbox.
type Sandbox struct {
	ID      string
	Tags    map[string]string
	GPU     string
	Running bool
	Blocked bool // its network is blocked
	Timeout time.Duration
	Image   string
	CPU     float64
	MostCPU float64 // limit on its cores
	Most    int     // limit on its memory, in MiB
}

// Sandboxes returns all sandboxes, ended ones too, in the order of their creation.
func (s *Server) Sandboxes() []Sandbox {
	var list []Sandbox
	for _, b := range s.all() {
		running := !closed(b.ended)
		s.mu.Lock()
		list = append(list, Sandbox{
			ID: b.id, Tags: maps.Clone(b.tags), GPU: b.def.GetResources().GetGpuConfig().GetGpuType(), Running: running,
			Blocked: b.def.GetNetworkAccess().GetNetworkAccessType() == pb.NetworkAccess_BLOCKED,
			Timeout: time.Duration(b.def.GetTimeoutSecs()) * time.Second, Image: b.def.GetImageId(),
			CPU:     float64(b.def.GetResources().GetMilliCpu()) / 1000,
			MostCPU: float64(b.def.GetResources().GetMilliCpuMax()) / 1000,
			Most:    int(b.def.GetResources().GetMemoryMbMax()),
		})
		s.mu.Unlock()
	}
	return list
}

// Calls returns the names of the called methods, in order.
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Volume returns the folder with a volume's files.
func (s *Server) Volume(name string) string { return filepath.Join(s.dir, "volumes", name) }

// Dir returns the folder with a sandbox's own disk.
func (s *Server) Dir(id string) string { return filepath.Join(s.dir, "sandboxes", id) }

func (s *Server) all() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.boxes)
}

func (s *Server) box(id string) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.id == id || b.task == id {
			return b, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "Sandbox with ID %s not found", id)
}

// admit counts a call, and refuses it if its token is wrong or a test wants it to fail.
func (s *Server) admit(ctx context.Context, method string) (late bool, err error) {
	service, method := filepath.Split(method)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, method)
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(k string) string { return append(md.Get(k), "")[0] } // the SDK sends some of them twice
	if strings.HasSuffix(service, "ModalClient/") {
		if id := get("x-modal-token-id"); id != s.id || get("x-modal-token-secret") != s.secret {
			return false, status.Errorf(codes.Unauthenticated, "Token ID %s is malformed or unknown", id)
		}
		if method != "AuthTokenGet" && method != "ImageJoinStreaming" && get("x-modal-auth-token") == "" {
			return false, status.Error(codes.Unauthenticated, "no auth token")
		}
	} else if !strings.HasPrefix(get("authorization"), "Bearer ") {
		return false, status.Error(codes.Unauthenticated, "no bearer token")
	}
	if f := s.fails[method]; f != nil && f.left != 0 {
		f.left--
		return f.late, f.err
	}
	return false, nil
}

func jwt() string {
	part := func(v any) string {
		b, _ := json.Marshal(v)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return part(map[string]any{"alg": "HS256", "typ": "JWT"}) + "." +
		part(map[string]any{"exp": time.Now().Add(time.Hour).Unix()}) + ".sig"
}

func (s *Server) AuthTokenGet(context.Context, *pb.AuthTokenGetRequest) (*pb.AuthTokenGetResponse, error) {
	return pb.AuthTokenGetResponse_builder{Token: jwt()}.Build(), nil
}

func (s *Server) AppGetOrCreate(_ context.Context, r *pb.AppGetOrCreateRequest) (*pb.AppGetOrCreateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.apps, r.GetAppName()) {
		s.apps = append(s.apps, r.GetAppName())
	}
	return pb.AppGetOrCreateResponse_builder{AppId: "ap-" + r.GetAppName()}.Build(), nil
}

func (s *Server) EnvironmentGetOrCreate(context.Context,
	*pb.EnvironmentGetOrCreateRequest) (*pb.EnvironmentGetOrCreateResponse, error) {
	return pb.EnvironmentGetOrCreateResponse_builder{EnvironmentId: "en-1",
		Metadata: pb.EnvironmentMetadata_builder{Name: "main",
			Settings: pb.EnvironmentSettings_builder{ImageBuilderVersion: "2025.06"}.Build()}.Build()}.Build(), nil
}

// ImageGetOrCreate returns an id made of the image's build commands.
func (s *Server) ImageGetOrCreate(_ context.Context, r *pb.ImageGetOrCreateRequest) (*pb.ImageGetOrCreateResponse,
	error) {
	return pb.ImageGetOrCreateResponse_builder{ImageId: "im-" + strings.Join(r.GetImage().GetDockerfileCommands(),
		";")}.Build(), nil
}

func (s *Server) ImageJoinStreaming(_ *pb.ImageJoinStreamingRequest,
	st grpc.ServerStreamingServer[pb.ImageJoinStreamingResponse]) error {
	s.mu.Lock()
	lines, broken := s.build, s.broken
	s.mu.Unlock()
	for i, line := range lines {
		if err := st.Send(pb.ImageJoinStreamingResponse_builder{EntryId: fmt.Sprint(i),
			TaskLogs: []*pb.TaskLogs{pb.TaskLogs_builder{Data: line}.Build()}}.Build()); err != nil {
			return err
		}
	}
	result := pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_SUCCESS}
	if broken != "" {
		result = pb.GenericResult_builder{Status: pb.GenericResult_GENERIC_STATUS_FAILURE, Exception: broken}
	}
	return st.Send(pb.ImageJoinStreamingResponse_builder{EntryId: "end", Result: result.Build()}.Build())
}

func (s *Server) VolumeGetOrCreate(_ context.Context, r *pb.VolumeGetOrCreateRequest) (*pb.VolumeGetOrCreateResponse,
	error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := "vo-" + r.GetDeploymentName()
	if s.volumes[id] == "" {
		if r.GetObjectCreationType() != pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING {
			return nil, status.Error(codes.NotFound, "no such volume")
		}
		s.volumes[id] = s.Volume(r.GetDeploymentName())
		s.versions[id] = r.GetVersion()
		if err := os.MkdirAll(s.volumes[id], 0o755); err != nil {
			return nil, err
		}
	}
	return pb.VolumeGetOrCreateResponse_builder{VolumeId: id, Version: s.versions[id],
		Metadata: pb.VolumeMetadata_builder{Version: s.versions[id], Name: r.GetDeploymentName()}.Build()}.Build(), nil
}

// OldVolume creates a volume of version 1.
func (s *Server) OldVolume(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.volumes["vo-"+name], s.versions["vo-"+name] = s.Volume(name), pb.VolumeFsVersion_VOLUME_FS_VERSION_V1
}

func (s *Server) SandboxCreate(_ context.Context, r *pb.SandboxCreateRequest) (*pb.SandboxCreateResponse, error) {
	b, err := s.create(r.GetAppId(), r.GetDefinition(), r.GetTags(), false)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateResponse_builder{SandboxId: b.id}.Build(), nil
}

func (s *Server) SandboxCreateV2(_ context.Context, r *pb.SandboxCreateV2Request) (*pb.SandboxCreateV2Response, error) {
	b, err := s.create(r.GetAppId(), r.GetDefinition(), r.GetTags(), true)
	if err != nil {
		return nil, err
	}
	return pb.SandboxCreateV2Response_builder{SandboxId: b.id, TaskId: b.task,
		CommandRouterAccess: pb.CommandRouterAccess_builder{Jwt: jwt(), Url: "https://" + s.addr}.Build()}.Build(), nil
}

func (s *Server) SandboxGetTaskId(_ context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse,
	error) {
	b, err := s.box(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case b.started:
		return pb.SandboxGetTaskIdResponse_builder{TaskId: &b.task}.Build(), nil
	case b.result != nil:
		return pb.SandboxGetTaskIdResponse_builder{TaskResult: b.result}.Build(), nil
	}
	return &pb.SandboxGetTaskIdResponse{}, nil
}

func (s *Server) SandboxGetTaskIdV2(ctx context.Context, r *pb.SandboxGetTaskIdRequest) (*pb.SandboxGetTaskIdResponse,
	error) {
	return s.SandboxGetTaskId(ctx, r)
}

// The router's URL says https, as Modal's does; a client of a server on loopback dials it without TLS.
func (s *Server) TaskGetCommandRouterAccess(context.Context, *pb.TaskGetCommandRouterAccessRequest) (
	*pb.TaskGetCommandRouterAccessResponse, error) {
	return pb.TaskGetCommandRouterAccessResponse_builder{Jwt: jwt(), Url: "https://" + s.addr}.Build(), nil
}

func (s *Server) SandboxGetCommandRouterAccess(context.Context, *pb.SandboxGetCommandRouterAccessRequest) (
	*pb.SandboxGetCommandRouterAccessResponse, error) {
	return pb.SandboxGetCommandRouterAccessResponse_builder{Jwt: jwt(), Url: "https://" + s.addr}.Build(), nil
}

func (s *Server) SandboxWait(ctx context.Context, r *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	b, err := s.box(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	select {
	case <-b.ended:
		s.mu.Lock()
		defer s.mu.Unlock()
		return pb.SandboxWaitResponse_builder{Result: b.result}.Build(), nil
	default:
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(float64(r.GetTimeout()) * float64(time.Second))):
	case <-b.ended:
		return s.SandboxWait(ctx, r)
	}
	return &pb.SandboxWaitResponse{}, nil
}

func (s *Server) SandboxWaitV2(ctx context.Context, r *pb.SandboxWaitRequest) (*pb.SandboxWaitResponse, error) {
	return s.SandboxWait(ctx, r)
}

func (s *Server) SandboxTerminate(_ context.Context, r *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse,
	error) {
	b, err := s.box(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	go b.end(pb.GenericResult_GENERIC_STATUS_TERMINATED, "", 0, true)
	return &pb.SandboxTerminateResponse{}, nil
}

func (s *Server) SandboxTerminateV2(ctx context.Context, r *pb.SandboxTerminateRequest) (*pb.SandboxTerminateResponse,
	error) {
	return s.SandboxTerminate(ctx, r)
}

// SandboxListV2 returns pages of two, the newest first.
func (s *Server) SandboxListV2(_ context.Context, r *pb.SandboxListRequest) (*pb.SandboxListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []*pb.SandboxInfo
	for _, b := range slices.Backward(s.boxes) {
		if b.result != nil || b.app != r.GetAppId() || r.GetBeforeTimestamp() > 0 && b.created >= r.GetBeforeTimestamp() ||
			len(page) == 2 ||
			slices.ContainsFunc(r.GetTags(), func(t *pb.SandboxTag) bool { return b.tags[t.GetTagName()] != t.GetTagValue() }) {
			continue
		}
		page = append(page, pb.SandboxInfo_builder{Id: b.id, CreatedAt: b.created}.Build())
	}
	return pb.SandboxListResponse_builder{Sandboxes: page}.Build(), nil
}

func (s *Server) SandboxTagsGet(_ context.Context, r *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse, error) {
	b, err := s.box(r.GetSandboxId())
	if err != nil {
		return nil, err
	}
	var tags []*pb.SandboxTag
	for k, v := range b.tags {
		tags = append(tags, pb.SandboxTag_builder{TagName: k, TagValue: v}.Build())
	}
	return pb.SandboxTagsGetResponse_builder{Tags: tags}.Build(), nil
}

func (s *Server) SandboxTagsGetV2(ctx context.Context, r *pb.SandboxTagsGetRequest) (*pb.SandboxTagsGetResponse,
	error) {
	return s.SandboxTagsGet(ctx, r)
}

var errEnded = errors.New("the sandbox has ended")
