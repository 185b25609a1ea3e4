//go:build e2e && linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heddle-dev/heddle/api/wellknown"
	"github.com/heddle-dev/heddle/test/programtest"
	"github.com/heddle-dev/heddle/test/sysfstest"
)

// TestDegradedLink is a worker over a host with an HCA that counts errors for a while: the link is named by all that
// shows cables, /node_group stays, and the finding ends after the errors.
func TestDegradedLink(t *testing.T) {
	b := shared(t)
	const node, master, worker = "slow-link", 19071, "127.0.0.1:19072"
	b.topologyCRD(t)
	t.Cleanup(func() { // topo-master labels the real node too.
		if _, err := b.Kubectl(context.WithoutCancel(t.Context()), "label", "node", b.Node(), wellknown.TopologyShape+"-"); err != nil {
			t.Error(err)
		}
	})
	b.newNode(t, node)
	tree := sysfstest.New(t)
	sysfstest.DGXH100(tree)
	const counter = "sys/class/infiniband/mlx5_3/ports/1/counters/symbol_error"
	tree.Write(counter, "0")
	b.startTopoMaster(t, "degraded", master)
	file := filepath.Join(t.TempDir(), "topology.yaml")
	static := "version: v1\nnodes:\n  " + node + ":\n    rails: {0: a, 1: b, 2: c, 3: d}\n"
	if err := os.WriteFile(file, []byte(static), 0o600); err != nil {
		t.Fatal(err)
	}
	b.startDaemon(t, "heddle-node", worker, []string{
		"topo-worker", "--kubeconfig", b.Kubeconfig(), "--node-name", node, "--metrics-address", worker,
		"--sysfs-root", tree.Sys(), "--proc-root", tree.Proc(), "--dev-root", tree.Dev(),
		"--interval", "1s", "--counters-interval", "1s",
		"--config", programtest.Config(t, "topology: {staticFile: "+file+"}\n"),
	})
	groups := func() string {
		body, _ := b.ask(t, fmt.Sprintf("http://127.0.0.1:%d/node_group", master))
		return body
	}
	// The control plane takes the Node's readiness back after a while.
	const before = `{"name":"leaf-a","kind":"leaf","child":[{"name":"slow-link","kind":"node","status":"Ready"}],"status":"Ready"}`
	inItsGroup := func() string {
		b.ready(t, node)
		if body := groups(); !strings.Contains(body, before) {
			return "/node_group is " + body
		}
		return ""
	}
	eventually(t, inItsGroup)

	fabric := func(status corev1.ConditionStatus, reason string) string {
		for _, c := range b.node(t, node).Status.Conditions {
			if c.Type == wellknown.ConditionFabric && (c.Status != status || c.Reason != reason) {
				return fmt.Sprintf("%s is %s: %s: %s", c.Type, c.Status, c.Reason, c.Message)
			} else if c.Type == wellknown.ConditionFabric {
				return ""
			}
		}
		return "no condition"
	}
	heal := countErrors(t, filepath.Join(tree.Root, counter))
	defer heal()
	eventually(t, func() string {
		if spec := b.reportOf(t, node).Spec; len(spec.DegradedLinks) != 1 {
			return fmt.Sprintf("degraded links: %+v", spec.DegradedLinks)
		}
		return fabric(corev1.ConditionFalse, wellknown.EventLinkDegraded)
	})
	found := b.reportOf(t, node).Spec.DegradedLinks[0]
	if found.HCA != "mlx5_3" || found.What != "symbol-errors" || found.Source != "IBTA" || found.Limit != "1.0e-12 per bit" {
		t.Errorf("found: %+v", found)
	}
	const sentence = "mlx5_3 port 1 (rail 3) is degraded: symbol-errors above the limit, 1.0e-12 per bit (IBTA)"
	cli := b.laptop(t)
	url := fmt.Sprintf("--topo-master=http://127.0.0.1:%d", master)
	out, code := cli.run(t, "topo", "miscabled", url)
	t.Log(out)
	if code != 1 || !strings.Contains(out, "degraded-link") || !strings.Contains(out, "mlx5_3:1") || !strings.Contains(out, found.Value) {
		t.Errorf("heddle topo miscabled: exit %d\n%s", code, out)
	}
	out, code = cli.run(t, "doctor", "--node", node)
	t.Log(out)
	if code != 1 || !strings.Contains(out, "is degraded since") || !strings.Contains(out, sentence) {
		t.Errorf("heddle doctor: exit %d\n%s", code, out)
	}
	eventually(t, inItsGroup)
	metrics, _ := b.ask(t, "http://"+worker+"/metrics")
	if !strings.Contains(metrics, `heddle_topology_degraded_link{device="mlx5_3",port="1",what="symbol-errors"} 1`) {
		t.Error("no metric of the link")
	}

	heal()
	eventually(t, func() string {
		if spec := b.reportOf(t, node).Spec; len(spec.DegradedLinks) != 0 {
			return fmt.Sprintf("degraded links: %+v", spec.DegradedLinks)
		}
		if fabric(corev1.ConditionFalse, wellknown.EventLinkDegraded) == "" {
			return "the condition is still False"
		}
		return ""
	})
	eventually(t, func() string {
		list, err := b.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + node,
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]string{}
		for i := range list.Items {
			seen[list.Items[i].Reason] += list.Items[i].Message
		}
		if seen[wellknown.EventLinkDegraded] != sentence || !strings.Contains(seen[wellknown.EventCableRecovered], sentence) {
			return fmt.Sprintf("events: %v", seen)
		}
		return ""
	})
}

// countErrors makes a counter grow by 100 a second, 250 times the limit, until the returned function is called.
func countErrors(t *testing.T, file string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 10; ; n += 10 {
			// As a kernel's file, it is never empty.
			err := os.WriteFile(file+".new", []byte(strconv.Itoa(n)), 0o600)
			if err = errors.Join(err, os.Rename(file+".new", file)); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}
