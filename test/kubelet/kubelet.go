// Package kubelet is a device manager for tests: it registers, watches and
// calls device plugins, admits pods, answers PodResources and writes the
// checkpoint in the ways of the real kubelet (k8s.io/kubernetes v1.37
// pkg/kubelet/cm/devicemanager), its faults included. It runs no containers.
// Where the real one would panic, the test fails.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/heddle-dev/heddle/test/kubelet/checkpoint"
)

// Kubelet is one kubelet on one directory. It may be stopped and started
// again; pods outlive that, as they do on a node.
type Kubelet struct {
	tb  testing.TB
	dir string

	// serving counts the goroutines of the running kubelet.
	serving sync.WaitGroup
	servers []*grpc.Server
	// admitting is the kubelet's allocationMutex: one pod at a time.
	admitting sync.Mutex

	// mu guards everything below.
	mu      sync.Mutex
	up      bool
	changed chan struct{}

	pods  []Pod
	held  holdings
	used  map[string]map[string]bool            // allocatedDevices
	reuse map[string]map[string]map[string]bool // devicesToReuse: pod UID, resource, ID

	devices   map[string]map[string]*v1beta1.Device // allDevices
	healthy   map[string]map[string]bool
	unhealthy map[string]map[string]bool
	endpoints map[string]*endpoint            // the one that is called, by resource
	store     map[string]map[string]*endpoint // by resource and socket path
	clients   map[string][]*endpoint          // connections, in order of registration

	registrations map[string]int // accepted ones, over all restarts
	updates       map[string]int // ListAndWatch responses, over all restarts
	calls         int
	rejected      int
	fault         Fault
}

// New prepares a kubelet on dir (what --root-dir names) without starting it.
// Socket paths hold 107 bytes: see Dir.
func New(tb testing.TB, dir string) *Kubelet {
	tb.Helper()
	k := &Kubelet{
		tb: tb, dir: dir, changed: make(chan struct{}),
		held: holdings{}, registrations: map[string]int{}, updates: map[string]int{},
	}
	k.forget()
	tb.Cleanup(k.Stop)
	return k
}

// Start prepares a kubelet on dir and starts it.
func Start(tb testing.TB, dir string) *Kubelet {
	tb.Helper()
	k := New(tb, dir)
	k.Up()
	return k
}

// Dir makes a directory with a path short enough for sockets, which names of
// tests are not.
func Dir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "kl") //nolint:usetesting // TempDir's paths are too long for sockets.
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// PluginDir is where plugins put their sockets.
func (k *Kubelet) PluginDir() string { return filepath.Join(k.dir, "device-plugins") }

// Socket is the registration socket.
func (k *Kubelet) Socket() string { return filepath.Join(k.PluginDir(), "kubelet.sock") }

// PodResourcesSocket is the socket of the PodResources API.
func (k *Kubelet) PodResourcesSocket() string {
	return filepath.Join(k.dir, "pod-resources", "kubelet.sock")
}

// Checkpoint is the path of kubelet_internal_checkpoint.
func (k *Kubelet) Checkpoint() string { return filepath.Join(k.PluginDir(), checkpoint.File) }

// Up starts the kubelet as the real one starts: it reads the checkpoint,
// removes every socket from the plugin directory, and listens.
func (k *Kubelet) Up() {
	k.tb.Helper()
	if err := k.start(); err != nil {
		k.tb.Fatalf("start kubelet: %v", err)
	}
}

func (k *Kubelet) start() error {
	if err := os.MkdirAll(k.PluginDir(), 0o750); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(k.PodResourcesSocket()), 0o750); err != nil {
		return err
	}
	if err := k.restore(); err != nil {
		return err
	}
	if err := removeSockets(k.PluginDir()); err != nil {
		return err
	}
	k.mu.Lock()
	k.up = true
	k.mu.Unlock()
	pods, err := k.servePodResources()
	if err != nil {
		return err
	}
	registry, err := k.serveRegistration()
	if err != nil {
		pods.Stop()
		return err
	}
	k.servers = []*grpc.Server{pods, registry}
	return nil
}

// Stop ends the kubelet: calls break off, plugins see their streams end.
// Socket files stay, as after kill -9.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	k.up = false
	k.mu.Unlock()
	for _, server := range k.servers {
		server.Stop()
	}
	k.mu.Lock()
	for _, es := range k.clients {
		for _, e := range es {
			_ = e.conn.Close()
		}
	}
	k.mu.Unlock()
	k.serving.Wait()
	k.servers = nil
	k.forget()
}

// Restart stops the kubelet and starts it again.
func (k *Kubelet) Restart() {
	k.tb.Helper()
	k.Stop()
	k.Up()
}

// Wipe empties the plugin directory, the checkpoint included. The kubelet
// need not be stopped for it.
func (k *Kubelet) Wipe() {
	k.tb.Helper()
	entries, err := os.ReadDir(k.PluginDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.tb.Fatalf("wipe: %v", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(k.PluginDir(), entry.Name())); err != nil {
			k.tb.Fatalf("wipe: %v", err)
		}
	}
}

// forget drops what a kubelet has in memory only.
func (k *Kubelet) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.used = map[string]map[string]bool{}
	k.reuse = map[string]map[string]map[string]bool{}
	k.devices = map[string]map[string]*v1beta1.Device{}
	k.healthy = map[string]map[string]bool{}
	k.unhealthy = map[string]map[string]bool{}
	k.endpoints = map[string]*endpoint{}
	k.store = map[string]map[string]*endpoint{}
	k.clients = map[string][]*endpoint{}
}

// restore is readCheckpoint. What Assign set before the first start has been
// written there too.
func (k *Kubelet) restore() error {
	data, err := checkpoint.Read(k.Checkpoint())
	if err != nil {
		// "Continue after failing to read checkpoint file. Device allocation
		// info may NOT be up-to-date".
		k.tb.Logf("kubelet: %v", err)
		data = checkpoint.New(nil, nil)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = holdings{}
	if err := k.held.load(data.Entries()); err != nil {
		return err
	}
	k.used = k.held.allocated()
	for resource := range data.Registered() {
		k.healthy[resource], k.unhealthy[resource] = map[string]bool{}, map[string]bool{}
		k.endpoints[resource] = &endpoint{resource: resource, stopped: true}
	}
	return nil
}

func (k *Kubelet) writeCheckpointLocked() {
	entries, err := k.held.entries()
	if err == nil {
		registered := map[string][]string{}
		for resource, ids := range k.healthy {
			registered[resource] = keys(ids)
		}
		if err = os.MkdirAll(k.PluginDir(), 0o750); err == nil {
			err = checkpoint.New(entries, registered).Write(k.Checkpoint())
		}
	}
	if err != nil {
		// The kubelet logs it and goes on.
		k.tb.Logf("kubelet: %v", err)
	}
}

// removeSockets is CleanupPluginDirectory: sockets only, files stay.
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&os.ModeSocket == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// listen binds a socket that stays when its listener is closed.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false)
	}
	return listener, nil
}
