//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// cycles is how many looks the daemon makes before it is weighed; one a
// second, the shortest interval it takes.
const cycles = 100

// bareNode is a Node without a kubelet: every write to it is the daemon's.
const bareNode = `{"apiVersion": "v1", "kind": "Node",
  "metadata": {"name": "bench", "labels": {"kubernetes.io/hostname": "bench"}}}`

// daemons weighs the daemons on a real cluster.
func daemons(ctx context.Context, log io.Writer) ([]row, error) {
	return onCluster(ctx, log, featureDiscovery, devicePlugin, topoWorker)
}

// measurement weighs something on a cluster, with what is built from this tree.
type measurement func(context.Context, *cluster.Cluster, *install.Installer, io.Writer) ([]row, error)

// onCluster takes measurements on one cluster.
func onCluster(ctx context.Context, log io.Writer, all ...measurement) (rows []row, err error) {
	cache, err := cluster.DefaultCache()
	if err != nil {
		return nil, err
	}
	c, err := cluster.Up(ctx, cluster.Options{Name: "bench", Replace: true, Log: log})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down(context.WithoutCancel(ctx))) }()
	i, err := install.New(ctx, filepath.Join(cache, "install-bench"), log)
	if err != nil {
		return nil, err
	}
	for _, measure := range all {
		got, err := measure(ctx, c, i, log)
		if err != nil {
			return nil, err
		}
		rows = append(rows, got...)
	}
	return rows, nil
}

// featureDiscovery weighs heddle-feature-discovery against the API server,
// with the three documented rules and a replayed DGX H100 on a Node of its own.
func featureDiscovery(
	ctx context.Context, c *cluster.Cluster, i *install.Installer, log io.Writer,
) (rows []row, err error) {
	binary, err := i.Build(ctx, nodeProgram)
	if err != nil {
		return nil, err
	}
	if err := c.Apply(ctx, bareNode); err != nil {
		return nil, err
	}
	d := &process{cluster: c, binary: binary, root: i.Root, log: log}
	first, err := d.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	const counter = "heddle_node_writes_total"
	writes, err := quietWrites(ctx, log, counter)
	if err != nil {
		return nil, err
	}
	anon, rss, _, err := resident(d.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	const proc = "/proc/PID/status after 100 looks, client-go watching, CEL rules on"
	return []row{
		atMost("feature-discovery: start to first labels", first.Seconds(), 1, "s",
			"exec until the API server has the label"),
		atMost("feature-discovery: anonymous resident memory", anon, 15, "MB", proc+": RssAnon"),
		atMost("feature-discovery: resident memory", rss, 45, "MB", proc+": VmRSS"),
		atMost("feature-discovery: API writes in 100 quiet looks", writes, 0, "", counter),
	}, nil
}

// process is the daemon on this host.
type process struct {
	cluster      *cluster.Cluster
	binary, root string
	log          io.Writer
	cmd          *exec.Cmd
}

// metricsAddress is where the measured daemon answers.
const metricsAddress = "127.0.0.1:19101"

// start runs the daemon and returns how long its first label took.
func (p *process) start(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	p.cmd = exec.CommandContext(ctx, p.binary, "feature-discovery",
		"--node-name", "bench", "--interval", "1s", "--log-level", "warn",
		"--machine", filepath.Join(p.root, "test/machines/dgx-h100.json"),
		"--config", filepath.Join(p.root, "test/machines/h800-8ib-bond.config"),
		"--kubeconfig", p.cluster.Kubeconfig(), "--metrics-address", metricsAddress)
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the daemon: %w", err)
	}
	// One command that waits, not many that ask: kubectl takes longer to
	// start than the daemon to write.
	wait := p.cluster.KubectlCommand(ctx, "wait", "node/bench", "--timeout=30s",
		`--for=jsonpath={.metadata.labels.nvidia\.com/gpu\.product}=NVIDIA-H100-80GB-HBM3`)
	if out, err := wait.CombinedOutput(); err != nil {
		return 0, errors.Join(fmt.Errorf("wait for labels: %w\n%s", err, out), p.stop())
	}
	return time.Since(begin), nil
}

func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the daemon: %w", err)
	}
	return p.cmd.Wait()
}

// quietWrites is how many API writes a daemon counts in some looks at an unchanged machine.
func quietWrites(ctx context.Context, log io.Writer, counter string) (float64, error) {
	before, err := scraped(ctx, counter)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(log, "letting it look %d times\n", cycles)
	if err := sleep(ctx, cycles*time.Second); err != nil {
		return 0, err
	}
	after, err := scraped(ctx, counter)
	return after - before, err
}

// scraped reads one of the daemon's own metrics.
func scraped(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAddress+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, fmt.Errorf("read metrics: %w", err)
	}
	_, rest, ok := strings.Cut(string(body), "\n"+name+" ")
	if !ok {
		return 0, fmt.Errorf("no %s among the metrics", name)
	}
	return strconv.ParseFloat(strings.Fields(rest)[0], 64)
}

// resident reads RssAnon, VmRSS and VmHWM out of /proc/PID/status, in MB of 2^20 bytes.
func resident(pid int) (anon, rss, peak float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, 0, err
	}
	read := func(field string) float64 {
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, field+":"); ok {
				kb, errParse := strconv.ParseFloat(strings.Fields(rest)[0], 64)
				err = errors.Join(err, errParse)
				return kb / 1024
			}
		}
		err = errors.Join(err, fmt.Errorf("no %s in /proc/%d/status", field, pid))
		return 0
	}
	return read("RssAnon"), read("VmRSS"), read("VmHWM"), err
}
