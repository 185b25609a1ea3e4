package sysfs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// maxFixed bounds the cache of devices, also of those that have left: a machine
// with 1,000 functions has some 3,000 attributes that stay.
const maxFixed = 16384

// Device is the directory of one kernel object.
type Device struct {
	FS
	dir string
	// at is the directory itself: a device that comes back has another. Zero is
	// one that cannot be looked at.
	at identity
}

// identity is an inode and when it was made or last changed. kernfs gives every directory a number of
// its own (fs/kernfs/dir.c, __kernfs_new_node); the time is for other file systems, which
// use a number again.
type identity struct {
	inode   uint64
	changed unix.Timespec
}

// fixed are attributes that stay as long as their device.
type fixed struct {
	mu    sync.Mutex
	known map[attribute]string
}

type attribute struct {
	of   identity
	name string
}

// Device looks at a directory.
func (f FS) Device(dir string) Device {
	d := Device{FS: f, dir: dir}
	var st unix.Stat_t
	if _, err := retryEINTR(func() (int, error) { return 0, unix.Stat(f.Path(dir), &st) }); err == nil {
		d.at = identity{st.Ino, st.Ctim}
	}
	return d
}

// Fixed returns an attribute that cannot change while the device is there, such as the class of
// a PCI function. It is read once: a large machine has hundreds of them, and a scan comes
// every few seconds.
func (d Device) Fixed(name string) (string, error) {
	key := attribute{d.at, name}
	d.fixed.mu.Lock()
	text, ok := d.fixed.known[key]
	d.fixed.mu.Unlock()
	if ok && d.at != (identity{}) {
		return text, nil
	}
	text, err := d.Read(d.dir + "/" + name)
	if err != nil {
		return "", err
	}
	d.fixed.mu.Lock()
	defer d.fixed.mu.Unlock()
	if len(d.fixed.known) >= maxFixed {
		clear(d.fixed.known)
	}
	d.fixed.known[key] = text
	return text, nil
}
