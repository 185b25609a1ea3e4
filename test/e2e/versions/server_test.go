//go:build e2e && linux

package versions

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const adminToken = "secret"

// apiServer is kube-apiserver and etcd on this host, and nothing else of a
// cluster.
type apiServer struct {
	kubectl string
	address string
	client  kubernetes.Interface
}

// startServer runs kube-apiserver until the test ends. The other programs are
// those of the newest version, in the directory bin.
func startServer(t *testing.T, bin, binary string, flags ...string) *apiServer {
	t.Helper()
	dir, ports := t.TempDir(), freePorts(t, 3)
	etcd, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	run(t, filepath.Join(bin, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--log-level=error", "--unsafe-no-fsync",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd, "--listen-peer-urls="+peer)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	accounts, tokens := filepath.Join(dir, "sa.key"), filepath.Join(dir, "tokens")
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	for file, data := range map[string][]byte{accounts: text, tokens: []byte(adminToken + ",admin,admin,system:masters\n")} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, binary, append([]string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--secure-port=" + ports[2],
		"--cert-dir=" + filepath.Join(dir, "certs"), "--token-auth-file=" + tokens, "--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-key-file=" + accounts, "--service-account-signing-key-file=" + accounts, "--allow-privileged=true",
		// No controller makes service accounts, or removes the taint of a new node.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
	}, flags...)...)
	s := &apiServer{kubectl: filepath.Join(bin, "kubectl"), address: "https://127.0.0.1:" + ports[2]}
	s.client, err = kubernetes.NewForConfig(&rest.Config{
		Host: s.address, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 500, Burst: 500,
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string {
		if _, err := s.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err != nil {
			return err.Error()
		}
		return ""
	})
	return s
}

// apply sends objects, each field of which the API server must know.
func (s *apiServer) apply(t *testing.T, objects string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.kubectl, "--server="+s.address, "--insecure-skip-tls-verify", "--token="+adminToken,
		"--cache-dir="+t.TempDir(), "apply", "--validate=strict", "-f", "-")
	cmd.Stdin = strings.NewReader(objects)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// kubeconfig is one for a service account's token.
func (s *apiServer) kubeconfig(t *testing.T, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
		"users": [{"name": "x", "user": {"token": %q}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, s.address, token)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// run starts a program that is killed with the test, or earlier by the caller. Its
// output is in the test's log if that fails.
func run(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	var out strings.Builder
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kill(cmd)
		if text := out.String(); t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(program), text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // It may have ended.
	_ = cmd.Wait()
}

// freePorts are ports of this host that no program listens on.
func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	return ports
}

// eventually waits until ok returns no complaint.
func eventually(t *testing.T, ok func() string) {
	t.Helper()
	deadline, tick := time.After(3*time.Minute), time.NewTicker(100*time.Millisecond)
	defer tick.Stop()
	for {
		complaint := ok()
		if complaint == "" {
			return
		}
		select {
		case <-deadline:
			t.Fatal(complaint)
		case <-tick.C:
		}
	}
}
