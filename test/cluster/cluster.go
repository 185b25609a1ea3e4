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
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Errors that callers branch on.
var (
	// ErrNotUp means that Open found no cluster of this name.
	ErrNotUp = errors.New("cluster is not up")
)

// Options describe the cluster to run, which has one real node named node1.
type Options struct {
	// Name distinguishes clusters on one machine; lower-case letters, digits and dashes.
	Name string
	// Kwok runs the controller that keeps simulated nodes Ready.
	Kwok bool
	// NodeLease is for how long a lease of a simulated node lasts, a quarter of which passes
	// between two renewals; 0 means 40 s, as for kubelets. Thousands of nodes that renew
	// every 10 s leave a small machine no time for anything else.
	NodeLease time.Duration
	// Kubelet is laid over the KubeletConfiguration, such as
	// {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"}.
	Kubelet map[string]any
	// Older is a directory of [Builder.Older] with components of Kubernetes that take the place of the newest ones.
	Older string
	// RootDir is the kubelet's --root-dir, below /var/lib; empty means /var/lib/kubelet.
	RootDir string
	// CRIO has the node run CRI-O in place of containerd: the programs of [Builder.CRIO].
	CRIO string
	// EmulatedVersion is the Kubernetes that API server, controller-manager and scheduler behave as, such as 1.36.
	EmulatedVersion string
	// FeatureGates go to every component.
	FeatureGates map[string]bool
	// APIServerArgs are added to the API server's command line.
	APIServerArgs []string
	// Log receives progress lines; nil means none.
	Log io.Writer

	cache string // Where everything is built and kept.
}

// state is what a later call, perhaps of another program, has to know about a
// cluster. It is written before anything else is done.
type state struct {
	Name          string          `json:"name"`
	Dir           string          `json:"dir"`
	LogDir        string          `json:"log_dir"`
	Cgroup        string          `json:"cgroup"`
	Kwok          bool            `json:"kwok"`
	NodeLease     time.Duration   `json:"node_lease,omitempty"`
	Older         string          `json:"older,omitempty"`
	Emulated      string          `json:"emulated,omitempty"`
	RootDir       string          `json:"root_dir,omitempty"`
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
	if o.Log == nil {
		o.Log = io.Discard
	}
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`).MatchString(o.Name) {
		return o, fmt.Errorf("cluster name %q: want up to 20 lower-case letters, digits and dashes", o.Name)
	}
	var err error
	if o.cache, err = DefaultCache(); err != nil {
		return o, err
	}
	o.cache, err = filepath.Abs(o.cache)
	return o, err
}

func (o Options) dir() string { return filepath.Join(o.cache, "up", o.Name) }

func (o Options) lock(ctx context.Context) (func(), error) {
	return lockFile(ctx, filepath.Join(o.cache, "up", o.Name+".lock"))
}

func (o Options) state(b Binaries) state {
	// Two caches may hold clusters of one name; cgroups are the machine's.
	sum := sha256.Sum256([]byte(o.dir()))
	return state{
		Name: o.Name, Dir: o.dir(), LogDir: filepath.Join(o.cache, "log", o.Name),
		Cgroup: "heddle-" + o.Name + "-" + hex.EncodeToString(sum[:3]),
		Kwok:   o.Kwok, NodeLease: o.NodeLease,
		Older: o.Older, Emulated: o.EmulatedVersion, RootDir: o.RootDir, CRIO: o.CRIO,
		FeatureGates: o.FeatureGates, APIServerArgs: o.APIServerArgs,
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

// Open finds a cluster that an earlier Up started, by Name of the options. It may have been killed
// in part: see Status.
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

// Node is the real node's name.
func (*Cluster) Node() string { return nodeName }

// Dir is the state directory, below the cache.
func (c *Cluster) Dir() string { return c.state.Dir }

// Kubeconfig is the file for clients on the host.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.state.Dir, "kubeconfig") }

// NodeKubeconfig is the file for clients on the node, such as what NodeCommand runs.
func (c *Cluster) NodeKubeconfig() string {
	return filepath.Join(c.state.Dir, "pki", "admin.kubeconfig")
}

func (c *Cluster) logFile(component string) string {
	return filepath.Join(c.state.LogDir, filepath.Base(component)+".log")
}

func (c *Cluster) pidFile(component string) string {
	return filepath.Join(c.state.Dir, "run", component+".pid")
}

// Status is a process of a cluster.
type Status struct {
	Name string
	PID  int // 0 when it does not run
}

// Status looks at the processes.
func (c *Cluster) Status() (all []Status) {
	for _, name := range c.components() {
		one := Status{Name: name}
		if p, ok := loadPID(c.pidFile(name)); ok && p.alive() {
			one.PID = p.pid
		}
		all = append(all, one)
	}
	return all
}
