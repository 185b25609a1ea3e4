//go:build linux

package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Errors that callers branch on.
var (
	// ErrRunning means that Up found a running cluster of this name.
	ErrRunning = errors.New("cluster is already running")
	// ErrNotUp means that Open found no cluster of this name.
	ErrNotUp = errors.New("cluster is not up")
)

// Options describe the cluster to run. The zero value is a cluster named heddle with
// one real node named node1.
type Options struct {
	// Name distinguishes clusters on one machine; lower-case letters, digits and dashes.
	Name string
	// Cache is where everything is built and kept; empty means DefaultCache.
	Cache string
	// Source is this repository's root; empty means the one around the working directory.
	Source string
	// Node is the real node's name; empty means node1.
	Node string
	// Port is the API server's on 127.0.0.1; 0 takes a free one.
	Port int
	// Kwok runs the controller that keeps simulated nodes Ready.
	Kwok bool
	// NodeLease is for how long a lease of a simulated node lasts, a quarter of which passes
	// between two renewals; 0 means 40 s, as for kubelets. Thousands of nodes that renew
	// every 10 s leave a small machine no time for anything else.
	NodeLease time.Duration
	// Replace brings a running cluster of the same name down first.
	Replace bool
	// Kubelet is laid over the KubeletConfiguration, such as
	// {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}.
	Kubelet map[string]any
	// KubeletBinary is the kubelet's program, of [Builder.Kubelet]; empty means the
	// version of everything else.
	KubeletBinary string
	// CRIO has the node run CRI-O in place of containerd: the programs of [Builder.CRIO].
	CRIO string
	// FeatureGates go to every component.
	FeatureGates map[string]bool
	// APIServerArgs are added to the API server's command line.
	APIServerArgs []string
	// Log receives progress lines; nil means none.
	Log io.Writer
}

// state is what a later call, perhaps of another program, has to know about a
// cluster. It is written before anything else is done.
type state struct {
	Name          string          `json:"name"`
	Dir           string          `json:"dir"`
	LogDir        string          `json:"log_dir"`
	Node          string          `json:"node"`
	Cgroup        string          `json:"cgroup"`
	Kwok          bool            `json:"kwok"`
	NodeLease     time.Duration   `json:"node_lease,omitempty"`
	KubeletBinary string          `json:"kubelet_binary,omitempty"`
	CRIO          string          `json:"crio,omitempty"`
	FeatureGates  map[string]bool `json:"feature_gates,omitempty"`
	APIServerArgs []string        `json:"api_server_args,omitempty"`
	Binaries      Binaries        `json:"binaries"`
}

// Cluster is a running cluster, or what is left of one. Its methods may be called
// from several goroutines.
type Cluster struct {
	state   state
	cgroups cgroups
	log     io.Writer
	// client is made on first use: the kubeconfig may not be there when the Cluster value is made.
	client func() (*kubernetes.Clientset, error)
}

func (o Options) withDefaults() (Options, error) {
	if o.Name == "" {
		o.Name = "heddle"
	}
	if o.Node == "" {
		o.Node = "node1"
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`).MatchString(o.Name) {
		return o, fmt.Errorf("cluster name %q: want up to 20 lower-case letters, digits and dashes", o.Name)
	}
	if o.Cache == "" {
		var err error
		if o.Cache, err = DefaultCache(); err != nil {
			return o, err
		}
	}
	var err error
	o.Cache, err = filepath.Abs(o.Cache)
	return o, err
}

func (o Options) dir() string { return filepath.Join(o.Cache, "up", o.Name) }

func (o Options) lock(ctx context.Context) (func(), error) {
	return lockFile(ctx, filepath.Join(o.Cache, "up", o.Name+".lock"))
}

func (o Options) state(b Binaries) state {
	// Two caches may hold clusters of one name; cgroups are the machine's.
	sum := sha256.Sum256([]byte(o.dir()))
	return state{
		Name: o.Name, Dir: o.dir(), LogDir: filepath.Join(o.Cache, "log", o.Name), Node: o.Node,
		Cgroup: "heddle-" + o.Name + "-" + hex.EncodeToString(sum[:3]),
		Kwok:   o.Kwok, NodeLease: o.NodeLease,
		KubeletBinary: o.KubeletBinary, CRIO: o.CRIO, FeatureGates: o.FeatureGates, APIServerArgs: o.APIServerArgs,
		Binaries: b,
	}
}

func newCluster(s state, log io.Writer) (*Cluster, error) {
	hierarchies, err := readHierarchies("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	c := &Cluster{state: s, cgroups: cgroups{name: s.Cgroup, hierarchies: hierarchies}, log: log}
	c.client = sync.OnceValues(func() (*kubernetes.Clientset, error) { return newClient(c.Kubeconfig()) })
	return c, nil
}

// Open finds a cluster that an earlier Up started, by Name and Cache of the
// options. It may have been killed in part: see Status.
func Open(o Options) (*Cluster, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(o.dir(), "cluster.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", o.Name, ErrNotUp)
	}
	if err != nil {
		return nil, fmt.Errorf("read cluster state: %w", err)
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("parse cluster state: %w", err)
	}
	return newCluster(s, o.Log)
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.state.Name }

// Node is the real node's name.
func (c *Cluster) Node() string { return c.state.Node }

// Dir is the state directory, below the cache.
func (c *Cluster) Dir() string { return c.state.Dir }

// Kubeconfig is the file for clients on the host.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.state.Dir, "kubeconfig") }

// NodeKubeconfig is the file for clients on the node, such as what NodeCommand runs.
func (c *Cluster) NodeKubeconfig() string {
	return filepath.Join(c.state.Dir, "pki", "admin.kubeconfig")
}

// Logs opens the log of a component. Logs outlive the cluster, until the next Up
// of the same name.
func (c *Cluster) Logs(component string) (io.ReadCloser, error) {
	f, err := os.Open(c.logFile(component))
	if err != nil {
		return nil, fmt.Errorf("logs of %s (one of %s): %w", component, strings.Join(c.Components(), ", "), err)
	}
	return f, nil
}

func (c *Cluster) logFile(component string) string {
	return filepath.Join(c.state.LogDir, filepath.Base(component)+".log")
}

func (c *Cluster) pidFile(component string) string {
	return filepath.Join(c.state.Dir, "run", component+".pid")
}

// Status is what Cluster.Status finds.
type Status struct {
	Name       string
	Components []ComponentStatus
	APIReady   bool
	NodeReady  bool
	Kubeconfig string
}

// ComponentStatus is one process.
type ComponentStatus struct {
	Name    string
	PID     int // 0 when it does not run
	LogFile string
}

// Running reports whether every process runs and the node is Ready.
func (s Status) Running() bool {
	for _, c := range s.Components {
		if c.PID == 0 {
			return false
		}
	}
	return s.APIReady && s.NodeReady
}

// Status looks at the processes, the API server and the node.
func (c *Cluster) Status(ctx context.Context) Status {
	s := Status{Name: c.state.Name, Kubeconfig: c.Kubeconfig()}
	for _, name := range c.Components() {
		one := ComponentStatus{Name: name, LogFile: c.logFile(name)}
		if p, ok := loadPID(c.pidFile(name)); ok && p.alive() {
			one.PID = p.pid
		}
		s.Components = append(s.Components, one)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	s.APIReady = c.answers(ctx, "/readyz")
	if s.APIReady {
		s.NodeReady, _ = c.nodeReady(ctx, c.state.Node) // An unreachable node is not Ready.
	}
	return s
}
