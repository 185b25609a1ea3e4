package main

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// The packaged chart goes to a registry by the documented helm push, and comes back from there by helm pull.
func TestHelmPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	dir := t.TempDir()
	helm := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"tool", "-modfile=tools/helm/go.mod", "helm"}, args...)...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	helm("package", "deploy/helm/heddle", "--destination", dir)
	helm("push", filepath.Join(dir, "heddle-0.1.0.tgz"), "oci://"+host+"/ai/gpu/charts", "--plain-http")
	tag, err := name.NewTag(host+"/ai/gpu/charts/heddle:0.1.0", name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := remote.Head(tag); err != nil {
		t.Fatal(err)
	}
	helm("pull", "oci://"+host+"/ai/gpu/charts/heddle", "--version", "0.1.0", "--plain-http", "--untar", "--untardir", filepath.Join(dir, "back"))
	if _, err := os.Stat(filepath.Join(dir, "back/heddle/values.yaml")); err != nil {
		t.Error(err)
	}
}
