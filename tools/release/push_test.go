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
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// made writes a layout like that of an image for two architectures.
func made(t *testing.T, from, image, tag string) v1.Hash {
	t.Helper()
	index, err := random.Index(100, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	path, err := layout.Write(filepath.Join(from, image), empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func has(t *testing.T, ref string, want v1.Hash) {
	t.Helper()
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	got, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := got.Digest(); err != nil || digest != want {
		t.Errorf("%s is %s, %v, want %s", ref, digest, err, want)
	}
}

func TestPush(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	from := t.TempDir()
	one, two := made(t, from, "heddle", "v1"), made(t, from, "heddle-scheduler", "v1")
	if err := push(t.Context(), from, host+"/ai/gpu", true); err != nil {
		t.Fatal(err)
	}
	has(t, host+"/ai/gpu/heddle:v1", one)
	has(t, host+"/ai/gpu/heddle-scheduler:v1", two)
	if err := push(t.Context(), t.TempDir(), host+"/ai/gpu", true); err == nil || !strings.Contains(err.Error(), "no images in") {
		t.Errorf("an empty directory: %v", err)
	}
}

// The one file pushes by itself, on a machine without a container engine.
func TestBundle(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	dir := t.TempDir()
	digest := made(t, filepath.Join(dir, "images"), "heddle", "v1")
	run := filepath.Join(dir, "heddle-images.run")
	if out, err := exec.CommandContext(t.Context(), "./pack.sh", "bundle", filepath.Join(dir, "images"), run).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), run, "push", host+"/ai/gpu")
	cmd.Env = append(os.Environ(), "REGISTRY_INSECURE=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--set image.repository="+host+"/ai/gpu --set image.tag=v1") {
		t.Fatalf("%v: %s", err, out)
	}
	has(t, host+"/ai/gpu/heddle:v1", digest)
	// The name of an engine goes before the command, or behind it.
	engine := filepath.Join(dir, "crane")
	if err := os.WriteFile(engine, []byte("#!/bin/sh\necho \"$@\" | sed 's| /[^ ]*/images/| |'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"crane", "push", host + "/ai"}, {"push", "crane", host + "/ai"}} {
		cmd := exec.CommandContext(t.Context(), run, args...)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "push --index heddle "+host+"/ai/heddle:v1\n") {
			t.Errorf("%q: %v: %s", args, err, out)
		}
	}
	if out, err := exec.CommandContext(t.Context(), run, "unpack", filepath.Join(dir, "to")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "to/chart/Chart.yaml")); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(t.Context(), run, "push").CombinedOutput(); err == nil || !strings.Contains(string(out), "DOMAIN/PROJECT") {
		t.Errorf("push without a registry: %v: %s", err, out)
	}
}
