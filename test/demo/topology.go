//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/heddle-dev/heddle/topo/gang"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// topoPort is where the map is, on the node and, if it is free, on the host.
const topoPort = 9001

// fleetDir has the machine files of the simulated nodes; Down removes it.
func (s *stage) fleetDir() string { return filepath.Join(s.Dir(), "fleet") }

// startWorkers runs the workers of the simulated nodes beside the cluster.
func (s *stage) startWorkers(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start the workers: %w", err)
	}
	return s.StartDaemon(ctx, "demo-workers", self, "workers", s.fleetDir(), s.Kubeconfig())
}

// mapService is topo-master for heddle-scheduler and for the host.
const mapService = "demo-map"

// fabric makes topo-master answer at its Service's address, and on the host too,
// and waits until it knows every node.
func (s *stage) fabric(ctx context.Context) error {
	port := topoPort
	if l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort("127.0.0.1", fmt.Sprint(port))); err != nil {
		port = 0 // It is in use.
	} else if err := l.Close(); err != nil {
		return err
	}
	address, err := s.Expose(ctx, "heddle-system", mapService, port)
	if err != nil {
		return err
	}
	s.url = "http://" + address
	return s.patient(ctx, s.unknown)
}

// patient waits until topo-master lacks nothing.
func (s *stage) patient(ctx context.Context, lacks func(context.Context) string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for {
		why := lacks(ctx)
		if why == "" {
			return nil
		}
		if ctx.Err() == nil {
			last = why
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("topo-master: %s: %w", last, ctx.Err())
		case <-tick.C:
		}
	}
}

// waiting names a gang that does not run yet, and the reason.
func (s *stage) waiting(ctx context.Context) string {
	body, err := s.ask(ctx, "/v1/gangs")
	if err != nil {
		return err.Error()
	}
	var all snapshot.Gangs
	if err := json.Unmarshal(body, &all); err != nil {
		return err.Error()
	}
	for i := range all.Gangs {
		if g := &all.Gangs[i]; g.State != gang.Running {
			return fmt.Sprintf("%s/%s is %s: %s", g.Namespace, g.Name, g.State, g.Reason)
		}
	}
	if len(all.Gangs) != 2 {
		return fmt.Sprintf("%d gangs of 2", len(all.Gangs))
	}
	return ""
}

// unknown names what topo-master does not know yet.
func (s *stage) unknown(ctx context.Context) string {
	body, err := s.ask(ctx, "/v1/topology")
	if err != nil {
		return err.Error()
	}
	var t snapshot.Topology
	if err := json.Unmarshal(body, &t); err != nil {
		return err.Error()
	}
	all := members(s.Node())
	if got := t.Nodes.Ready + t.Nodes.Degraded; got != len(all) || len(t.Findings) != 1 {
		return fmt.Sprintf("%d of %d nodes, %d findings", got, len(all), len(t.Findings))
	}
	for i := range t.Tree {
		// Only the node without cables is in no group.
		if e := &t.Tree[i]; e.Nodes == nil && e.Name != "storage1" {
			return e.Name + " is in no group"
		}
	}
	return ""
}

// gangs starts two jobs that are placed by the map, which is whole by now. They
// are waited for when they are shown.
func (s *stage) gangs(ctx context.Context) error {
	_, err := s.Kubectl(ctx, "apply", "-f", filepath.Join(s.installer.Root, "test/demo/gangs.yaml"))
	return err
}

// ask is GET.
func (s *stage) ask(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(path + " answers " + resp.Status)
	}
	return body, err
}

// showTopology ends the demo: the map as programs get it, as people do, and the
// page.
func (s *stage) showTopology(ctx context.Context) error {
	all, err := s.ask(ctx, "/node_group")
	if err != nil {
		return err
	}
	if err := s.patient(ctx, s.waiting); err != nil {
		return err
	}
	given, err := s.ask(ctx, "/node_group?kind=switchbox")
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "\n# Where the cables go: 72 nodes with GPUs, and one without\n"+
		"# %s's worker is a pod of the chart's DaemonSet, like the two replicas that answer. A simulated node\n"+
		"# runs no pods: its worker is the same code in a process beside the cluster. Machines are replayed, and\n"+
		"# a replayed machine has no cables to look into: the file %s contains where they go.\n"+
		"$ curl -s %s/node_group   # the first of %d bytes\n%.300s…\n"+
		"$ curl -s '%s/node_group?kind=switchbox'\n%s",
		s.Node(), fabricName, s.url, len(all), all, s.url, given)
	for _, c := range []struct{ title, args string }{
		{"Two gangs, 8 pods of 8 GPUs and 18 of 4: each in the smallest group that holds it", "topo gangs"},
		{"The map for people, and where the gangs went; without --groups with every node", "topo tree --groups"},
		{"The port that is in the wrong switch", "topo miscabled"},
	} {
		out, err := s.heddle(ctx, strings.Fields(c.args)...)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "\n# %s\n$ heddle %s\n%s", c.title, c.args, out)
	}
	for _, c := range []struct{ title, command string }{
		{"The groups as labels for schedulers, by kind", kinds},
		{"Who is where in the gang that has a rack: rank by rank", inOneRack},
	} {
		out, err := s.Kubectl(ctx, strings.Fields(c.command)[1:]...)
		if err != nil {
			return err
		}
		fmt.Fprintf(s.out, "\n# %s\n$ %s\n%s", c.title, c.command, out)
	}
	fmt.Fprintf(s.out, "\n# The page: open %s/ and choose a gang\n", s.url)
	return nil
}

const (
	kinds = "kubectl get nodes h20-1 r1-tray02 su2-dgx1 storage1 " +
		"-L heddle.dev/topology-shape,heddle.dev/topology.switchbox,heddle.dev/topology.dragonfly," +
		"heddle.dev/topology.leaf,heddle.dev/topology.nvlink"
	inOneRack = "kubectl -n pretraining get pods -l app=moe --sort-by=.spec.nodeName " +
		"-o custom-columns=POD:.metadata.name,NODE:.spec.nodeName,SCHEDULER:.spec.schedulerName"
)

// heddle runs the CLI against the cluster. Findings are an exit code, and what
// the demo is to show.
func (s *stage) heddle(ctx context.Context, args ...string) ([]byte, error) {
	args = append(args, "--kubeconfig", s.Kubeconfig())
	out, err := exec.CommandContext(ctx, filepath.Join(s.installer.Dir, "heddle"), args...).Output()
	if exit := (*exec.ExitError)(nil); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		return nil, fmt.Errorf("heddle %s: %w", args[0], err)
	}
	return out, nil
}
