# ipc
