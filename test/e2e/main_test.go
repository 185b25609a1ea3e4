//go:build e2e && linux

// Package e2e proves heddle on a real Kubernetes: API server, controllers,
// scheduler, kubelet and containerd of test/cluster.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heddle-dev/heddle/test/cluster"
	"github.com/heddle-dev/heddle/test/install"
)

// bed is a cluster with what the tests need to use it. Tests that change the real node put
// it back.
type bed struct {
	*cluster.Cluster
	installer *install.Installer
	config    *rest.Config
	client    kubernetes.Interface
}

// up is the bed that is up. There is one at a time: two clusters on two processors wait for
// each other.
var up *bed

// shared is the bed of the tests that make none of their own.
func shared(t *testing.T) *bed {
	t.Helper()
	if up == nil {
		up = newBed(t, cluster.Options{Name: "e2e", Log: os.Stderr})
	}
	return up
}

// ownBed is the bed of one test.
func ownBed(t *testing.T, o cluster.Options) *bed {
	t.Helper()
	down(t)
	up = newBed(t, o)
	t.Cleanup(func() { down(t) })
	return up
}

// down takes the bed down that is up.
func down(t *testing.T) {
	t.Helper()
	if up == nil {
		return
	}
	if err := up.Down(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	up = nil
}

// newBed brings a cluster up, with simulated nodes.
func newBed(t *testing.T, o cluster.Options) *bed {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	cache, err := cluster.DefaultCache()
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{}
	if b.installer, err = install.New(ctx, filepath.Join(cache, "install-e2e"), os.Stderr); err != nil {
		t.Fatal(err)
	}
	o.Kwok = true
	if b.Cluster, err = cluster.Up(ctx, o); err != nil {
		t.Fatal(err)
	}
	if b.config, err = clientcmd.BuildConfigFromFlags("", b.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	b.config.QPS, b.config.Burst = 500, 500
	if b.client, err = kubernetes.NewForConfig(b.config); err != nil {
		t.Fatal(err)
	}
	return b
}

// patience is how long a test waits for any condition: more than a busy machine takes for
// anything. How long something may take is no matter of these tests.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	code, err := runAll(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func runAll(m *testing.M) (code int, err error) {
	cache, err := cluster.DefaultCache()
	if err != nil {
		return 1, err
	}
	if missing := cluster.Preflight(cache); len(missing) > 0 {
		return 1, fmt.Errorf("this machine lacks what a cluster needs: %v", missing)
	}
	defer func() {
		if up != nil {
			err = errors.Join(err, up.Down(context.Background()))
		}
	}()
	return m.Run(), nil
}

// newNode creates a Node object that no kubelet and no controller of kwok
// looks after, so that every write to it is ours. It has the label that every
// kubelet sets: the API server starts to track managers with the first field.
func (b *bed) newNode(t *testing.T, name string) {
	t.Helper()
	nodes := b.client.CoreV1().Nodes()
	labels := map[string]string{corev1.LabelHostname: name}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := nodes.Create(t.Context(), n, metav1.CreateOptions{FieldManager: "operator"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := nodes.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func (b *bed) node(t *testing.T, name string) *corev1.Node {
	t.Helper()
	n, err := b.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// kubectl runs kubectl and fails the test if it fails.
func (b *bed) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually waits until ok returns "" and fails with its last word.
func eventually(t *testing.T, ok func() string) {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		why := ok()
		if why == "" {
			return
		}
		if time.Since(start) > patience {
			t.Fatalf("after %s: %s", patience, why)
		}
		<-tick.C
	}
}

// documented runs a command of the documentation in a shell on the node, with the
// administrator's kubeconfig.
func (b *bed) documented(t *testing.T, script string) string {
	t.Helper()
	cmd, err := b.NodeCommand(t.Context(), "sh", "-euc", script)
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(errors.Join(err, errors.New(stderr.String())))
	}
	return stdout.String()
}
