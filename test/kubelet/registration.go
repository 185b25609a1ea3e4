package kubelet

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// dialTimeout is the kubelet's, for connecting to a plugin.
const dialTimeout = 10 * time.Second

// endpoint is one connected plugin (the kubelet's client and endpointImpl).
type endpoint struct {
	resource, socket string
	conn             *grpc.ClientConn
	api              v1beta1.DevicePluginClient
	options          *v1beta1.DevicePluginOptions
	// stopped is guarded by Kubelet.mu.
	stopped bool
}

type registry struct {
	v1beta1.UnimplementedRegistrationServer
	k *Kubelet
}

func (k *Kubelet) serveRegistration() (*grpc.Server, error) {
	listener, err := listen(k.Socket())
	if err != nil {
		return nil, err
	}
	// Stop must find every connection that a call of Register makes.
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	v1beta1.RegisterRegistrationServer(server, &registry{k: k})
	k.serving.Go(func() { _ = server.Serve(listener) })
	return server, nil
}

// Register connects to the plugin before it answers, as the kubelet does.
func (r *registry) Register(ctx context.Context, req *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	if req.Version != v1beta1.Version {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet", req.Version)
	}
	path := filepath.Join(r.k.PluginDir(), req.Endpoint)
	if err := r.k.connect(ctx, req.ResourceName, path); err != nil {
		return nil, err
	}
	return &v1beta1.Empty{}, nil
}

// connect is the kubelet's connectClient with PluginConnected. Its fault is
// kept: a second registration from the same path, while the first is
// connected, is rejected, and the cleanup drops both connections from the list,
// so that the end of the first one no longer frees the path.
func (k *Kubelet) connect(ctx context.Context, resource, path string) error {
	e := &endpoint{resource: resource, socket: path}
	k.mu.Lock()
	k.clients[resource] = append(k.clients[resource], e)
	k.mu.Unlock()
	if err := k.attach(ctx, e); err != nil {
		k.mu.Lock()
		k.dropLocked(resource, path)
		k.mu.Unlock()
		return err
	}
	// The stream outlives the call, as in the kubelet.
	k.serving.Go(func() { k.watch(context.WithoutCancel(ctx), e) })
	return nil
}

func (k *Kubelet) attach(ctx context.Context, e *endpoint) error {
	conn, err := dial(e.socket)
	if err != nil {
		return err
	}
	e.conn, e.api = conn, v1beta1.NewDevicePluginClient(conn)
	dialing, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if e.options, err = e.api.GetDevicePluginOptions(dialing, &v1beta1.Empty{}, grpc.WaitForReady(true)); err != nil {
		_ = conn.Close()
		return fmt.Errorf("failed to get device plugin options: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.up {
		_ = conn.Close()
		return fmt.Errorf("kubelet is stopping")
	}
	if k.store[e.resource] == nil {
		k.store[e.resource] = map[string]*endpoint{}
	}
	if k.store[e.resource][e.socket] != nil {
		_ = conn.Close()
		return fmt.Errorf("device plugin already connected: %s", e.socket)
	}
	k.endpoints[e.resource] = e
	k.store[e.resource][e.socket] = e
	k.registrations[e.resource]++
	k.noteLocked()
	return nil
}

func dial(path string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}))
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	return conn, nil
}

// watch is the kubelet's runClient: one stream, and no second try.
func (k *Kubelet) watch(ctx context.Context, e *endpoint) {
	stream, err := e.api.ListAndWatch(ctx, &v1beta1.Empty{})
	for err == nil {
		var resp *v1beta1.ListAndWatchResponse
		if resp, err = stream.Recv(); err == nil {
			k.receive(e.resource, resp.Devices)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	// The kubelet looks for its connection by name and path, and leaves all as
	// it is when another one has removed it from the list.
	i := slices.IndexFunc(k.clients[e.resource], func(c *endpoint) bool { return c.socket == e.socket })
	if i < 0 {
		_ = e.conn.Close()
		return
	}
	found := k.clients[e.resource][i]
	k.dropLocked(e.resource, e.socket)
	_ = found.conn.Close()
	k.disconnectedLocked(found)
	k.noteLocked()
}

func (k *Kubelet) dropLocked(resource, path string) {
	k.clients[resource] = slices.DeleteFunc(slices.Clone(k.clients[resource]),
		func(c *endpoint) bool { return c.socket == path })
}

// disconnectedLocked is PluginDisconnected.
func (k *Kubelet) disconnectedLocked(e *endpoint) {
	known := k.store[e.resource]
	if known[e.socket] == nil {
		return
	}
	known[e.socket].stopped = true
	delete(known, e.socket)
	for _, other := range known {
		k.endpoints[e.resource] = other
		return
	}
	delete(k.store, e.resource)
	if k.unhealthy[e.resource] == nil {
		k.unhealthy[e.resource] = map[string]bool{}
	}
	maps.Copy(k.unhealthy[e.resource], k.healthy[e.resource])
	k.healthy[e.resource] = map[string]bool{}
}

// receive is genericDeviceUpdateCallback: the list replaces the one before.
func (k *Kubelet) receive(resource string, devices []*v1beta1.Device) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.up {
		return
	}
	k.devices[resource] = map[string]*v1beta1.Device{}
	k.healthy[resource], k.unhealthy[resource] = map[string]bool{}, map[string]bool{}
	for _, d := range devices {
		k.devices[resource][d.ID] = d
		if d.Health == v1beta1.Healthy {
			k.healthy[resource][d.ID] = true
		} else {
			k.unhealthy[resource][d.ID] = true
		}
	}
	k.updates[resource]++
	k.writeCheckpointLocked()
	k.noteLocked()
}

func keys(set map[string]bool) []string { return slices.Collect(maps.Keys(set)) }
