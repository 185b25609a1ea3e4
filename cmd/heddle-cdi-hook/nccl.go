package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// ncclFile is where NCCL reads its variables, after the environment and the user's own
// file, and neither is replaced (NCCL 2.27, src/misc/param.cc, initEnv).
const ncclFile = "etc/nccl.conf"

// addNCCL adds variables to the container's file for NCCL: a process that sshd starts, as
// those of an MPI job are, has none of the container's environment. What is in the file
// comes first, and so wins. Where the file is a volume's or behind a link, or there is no
// /etc, nothing is written: it is a hint, and no reason against the container.
func addNCCL(proc string, stdin io.Reader, variables []string) error {
	for _, v := range variables {
		if name, value, ok := strings.Cut(v, "="); !ok || name == "" || strings.ContainsAny(value, "\n\r") {
			return fmt.Errorf("%q is not NAME=VALUE", v)
		}
	}
	c, err := readContainer(stdin)
	if err != nil {
		return err
	}
	_, root := c.root(proc)
	file, err := openInRoot(root, ncclFile)
	if err != nil {
		fmt.Fprintln(os.Stderr, "heddle: no hints for NCCL:", err)
		return nil
	}
	_, err = file.WriteString("\n" + strings.Join(variables, "\n") + "\n")
	return errors.Join(err, file.Close())
}

// openInRoot opens a file of the container's own file system for appending, and makes it
// if missing: no link and no mount is passed, which may lead to files of others.
func openInRoot(root, path string) (*os.File, error) {
	dir, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return openFile(dir, path, unix.O_WRONLY|unix.O_APPEND)
}

// inRoot keeps a path in the container's own file system: no link and no mount is passed.
const inRoot = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV

func openFile(root *os.File, path string, how uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags: how | unix.O_CREAT | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Mode: 0o644, Resolve: inRoot,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("%s is not a file", path), err, file.Close())
	}
	return file, nil
}
